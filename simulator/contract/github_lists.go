package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// githubLists are the lists of repositories, issues, commits and events. Every list changes by the same
// rule at each tick, a minute of the real API: it grows by one item, one item is updated and so moves in a
// list that is sorted by updates, and at every tenth tick one item is deleted. Commits and events never
// change; they only grow.
type githubLists struct {
	maker *policyMaker
	began time.Time // time of the first call of any list
}

// githubItems is the number of items of every list at its first call.
const githubItems = 95

// kindOf returns the kind of the list with this URL, such as "issues"; empty: there is no such list.
func (g *githubLists) kindOf(u *url.URL) string {
	parts := strings.Split(u.Path, "/")
	kind := parts[len(parts)-1]
	if len(parts) < 4 || !slices.Contains([]string{"repos", "issues", "commits", "events"}, kind) {
		return ""
	}
	return kind
}

type githubItem struct {
	number  int
	updated time.Time
}

// items returns the items that a list of this kind has at the time now, in the order of their creation.
func (g *githubLists) items(kind string, now time.Time) (items []githubItem) {
	if g.began.IsZero() {
		g.began = now.Truncate(time.Second)
	}
	tick := g.maker.accelerated(time.Minute)
	ticks := int(now.Sub(g.began) / tick)
	for n := range githubItems + ticks {
		created := g.began.Add(time.Duration(n-githubItems) * time.Hour)
		if n >= githubItems {
			created = g.began.Add(time.Duration(n-githubItems+1) * tick)
		}
		items = append(items, githubItem{n + 1, created})
	}
	if kind == "commits" || kind == "events" {
		return items
	}
	for t := 1; t <= ticks; t++ {
		items[t*37%githubItems].updated = g.began.Add(time.Duration(t) * tick)
	}
	return slices.DeleteFunc(items, func(i githubItem) bool {
		for t := 10; t <= ticks; t += 10 {
			if t*13%githubItems+1 == i.number {
				return true
			}
		}
		return false
	})
}

// page returns a page of the list at the call's path, and the Link header. Links to other pages of a
// repository's list contain the repository's ID instead of its name, as in the real API.
func (g *githubLists) page(c *call) (list []object, links string) {
	kind, q := g.kindOf(c.URL), c.URL.Query()
	all := g.items(kind, c.at)
	if since, err := time.Parse(time.RFC3339, q.Get("since")); err == nil {
		all = slices.DeleteFunc(all, func(i githubItem) bool { return i.updated.Before(since) })
	}
	if q.Get("sort") == "updated" {
		slices.SortStableFunc(all, func(a, b githubItem) int { return a.updated.Compare(b.updated) })
	}
	if q.Get("direction") == "desc" || (q.Get("direction") == "" && (kind != "issues" || q.Get("sort") == "updated")) {
		slices.Reverse(all)
	}
	page, size := parseAtLeast(q.Get("page"), 1, 1), min(100, parseAtLeast(q.Get("per_page"), 1, 30))
	list = []object{}
	for _, i := range all[min((page-1)*size, len(all)):min(page*size, len(all))] {
		list = append(list, i.content(kind))
	}
	last := (len(all) + size - 1) / size
	var parts []string
	link := func(to int, rel string) {
		q.Set("page", strconv.Itoa(to))
		parts = append(parts, fmt.Sprintf(`<%s%s?%s>; rel="%s"`, origin(c), githubByNumber(c.URL), q.Encode(), rel))
	}
	if page > 1 {
		link(page-1, "prev")
	}
	if page < last {
		link(page+1, "next")
		link(last, "last")
	}
	if page > 1 {
		link(1, "first")
	}
	return list, strings.Join(parts, ", ")
}

// content returns the JSON object of the item in a list of this kind.
func (i githubItem) content(kind string) object {
	at := i.updated.UTC().Format(time.RFC3339)
	switch kind {
	case "issues":
		return object{"number": i.number, "title": fmt.Sprintf("issue %d", i.number), "state": "open", "updated_at": at}
	case "commits":
		sum := sha256.Sum256([]byte(strconv.Itoa(i.number)))
		return object{"sha": hex.EncodeToString(sum[:20]), "commit": object{"message": fmt.Sprintf("commit %d", i.number), "committer": object{"date": at}}}
	case "events":
		return object{"id": strconv.Itoa(i.number), "type": "PushEvent", "created_at": at}
	}
	return object{"id": i.number, "name": fmt.Sprintf("repo-%d", i.number), "updated_at": at}
}

// etag returns the ETag of the page at the call's path.
func (g *githubLists) etag(c *call) string {
	list, links := g.page(c)
	text, _ := json.Marshal(list) // no error is possible: the items have only texts and numbers
	sum := sha256.Sum256(append(text, links...))
	return fmt.Sprintf(`"%x"`, sum[:16])
}
