package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/clients"
)

// Clients reads the credits of clients.
type Clients interface {
	// List returns a part of the clients in the order of their names, after the client `after`.
	List(ctx context.Context, after string) (clients.List, error)
	// Shares returns the clients that used the most credits in the last 24 hours.
	Shares(ctx context.Context) (clients.Shares, error)
	// Client returns the credits of a client, and whether it has an account.
	Client(ctx context.Context, name string) (c clients.Client, found bool, err error)
}

// sharesTTL is how long the shares of the clients are cached.
const sharesTTL = time.Minute

// clientsPage is the data of the list of clients.
type clientsPage struct {
	Enabled bool // true: refreshes cost credits
	clients.List
	Shares *clients.Shares // nil: they could not be read
	after  string
}

// Bars returns the diagram of the clients that used the most credits; nil: there are none.
func (p clientsPage) Bars() *histogram {
	if p.Shares == nil || len(p.Shares.Top) == 0 {
		return nil
	}
	var labels []string
	var counts [][]int64
	for _, s := range p.Shares.Top {
		labels = append(labels, fmt.Sprintf("%s (%.0f %%)", displayText(s.Client, maxReasonShown), s.Percent))
		counts = append(counts, []int64{s.Credits})
	}
	if p.Shares.Others > 0 {
		labels, counts = append(labels, "all other clients"), append(counts, []int64{p.Shares.Others})
	}
	title := plural(p.Shares.Clients, "client used", "clients used") + " " + plural(p.Shares.Credits, "credit", "credits") + " in the last 24 hours"
	h := newHistogram(title, "Used credits by client, highest first", "Client", labels, [][2]string{{useClass, "used credits"}}, counts)
	for i, s := range p.Shares.Top {
		h.Bars[i].Href = clientLink(s.Client)
	}
	return &h
}

// First returns the URL of the first page; empty: this page is the first.
func (p clientsPage) First() string {
	if p.after == "" {
		return ""
	}
	return root + "/clients"
}

// NextPage returns the URL of the next page; empty: this page is the last.
func (p clientsPage) NextPage() string {
	if p.Next == "" {
		return ""
	}
	return root + "/clients?" + url.Values{"after": {p.Next}}.Encode()
}

// Link returns the URL of the page of a client.
func (clientsPage) Link(client string) string { return clientLink(client) }

func clientLink(client string) string {
	return root + "/clients/account?" + url.Values{"client": {client}}.Encode()
}

// showClients shows a part of the list of clients, and the clients that use the most credits.
func showClients(c *Console, w http.ResponseWriter, r *http.Request, _ access.Client) {
	p := clientsPage{Enabled: c.Clients != nil, after: r.FormValue("after")}
	if !p.Enabled {
		c.render(w, r, http.StatusOK, "clients", "Clients", p)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	var err error
	if p.List, err = c.Clients.List(ctx, p.after); err != nil {
		c.unavailable(w, r, "The clients can't be read.", err)
		return
	}
	if s, _, err := c.shares.Get(ctx, sharesTTL); err == nil {
		p.Shares = &s
	}
	c.render(w, r, http.StatusOK, "clients", "Clients", p)
}

// useClass is the CSS class of used credits.
const useClass = "c-left"

// clientPage is the data of the page of one client.
type clientPage struct {
	clients.Client
}

// useBar is a bar of the picture of a client's use.
type useBar struct {
	X, Y, Height, Title string
}

// barWidth and barGap are the widths of a bar and of the gap before it, in units of the picture.
const barWidth, barGap = 8, 2

// UseClass returns the CSS class of the bars.
func (clientPage) UseClass() string { return useClass }

// Width returns the width of the picture of the use.
func (p clientPage) Width() int { return len(p.Use) * (barWidth + barGap) }

// Bars returns one bar of the diagram for each period in which the client used credits.
func (p clientPage) Bars() (all []useBar) {
	highest := max(1, p.highest())
	for i, u := range p.Use {
		if u.Credits > 0 {
			all = append(all, useBar{
				X: strconv.Itoa(i*(barWidth+barGap) + barGap/2), Y: percentOf(highest-u.Credits, highest), Height: percentOf(u.Credits, highest),
				Title: p.Period(u) + ": " + plural(u.Credits, "credit", "credits"),
			})
		}
	}
	return all
}

// Newest returns the periods of the client's use of credits, the newest first.
func (p clientPage) Newest() (all []clients.Period) {
	for i := range p.Use {
		all = append(all, p.Use[len(p.Use)-1-i])
	}
	return all
}

// Period returns the start and the end of a period as text.
func (clientPage) Period(u clients.Period) string {
	return u.From.Format("2006-01-02 15:04") + "–" + u.From.Add(clients.PeriodLength).Format("15:04")
}

// Highest returns, as text, the used credits of the period with the highest use.
func (p clientPage) Highest() string { return status.FormatInt(p.highest()) }

func (p clientPage) highest() (highest int64) {
	for _, u := range p.Use {
		highest = max(highest, u.Credits)
	}
	return highest
}

// jsonBody returns the JSON form of the page, which contains only the credits of the client.
func (p clientPage) jsonBody() any { return p.Client }

// showClient shows the credits of one client.
func showClient(c *Console, w http.ResponseWriter, r *http.Request, _ access.Client) {
	if c.Clients == nil {
		c.reject(w, r, http.StatusNotFound, "Refreshes cost no credits: the configuration has no credits.plans.")
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	found, known, err := c.Clients.Client(ctx, r.FormValue("client"))
	switch {
	case err != nil:
		c.unavailable(w, r, "The credits of the client can't be read.", err)
	case !known:
		c.reject(w, r, http.StatusNotFound, "This client has no credits yet. The first refresh or the first grant creates its account.")
	default:
		c.render(w, r, http.StatusOK, "client", "Client "+displayText(found.Account.Client, maxReasonShown), clientPage{found})
	}
}
