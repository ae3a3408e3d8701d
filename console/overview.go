package console

import (
	"net/http"
	"strings"

	"github.com/freshet/freshet/access"
)

// livePage is the data of a page whose content is updated every second.
type livePage struct {
	liveStatus
	Sources   []string
	Scenarios []FaultScenario // fault scenarios of a simulated upstream; nil: the upstream is real
	Scenario  string
	Stopped   map[string]bool // sources that an operator has stopped
	Ages      map[string]*histogram
	BurnDowns map[string][]burnDown
}

// Table returns the table with this id, whose rows are updated every second. If source is not
// empty, it returns the table of that source.
func (p livePage) Table(id, source string) statusTable {
	if source != "" {
		id += "." + source
	}
	return p.Tables[id]
}

// Item returns the text with this id, which is updated every second.
func (p livePage) Item(id string) itemAt { return itemAt{id, p.Items[id]} }

// itemAt is a text that is updated every second, with the id of its HTML element.
type itemAt struct {
	ID string
	statusItem
}

// livePages are the pages whose content is updated while they are open.
type livePages struct{ *Console }

func (c *livePages) showLive(w http.ResponseWriter, r *http.Request, name, title string) {
	ctx, cancel := requestContext(r)
	defer cancel()
	n := c.sampler.latest(ctx)
	p := livePage{liveStatus: c.statusOf(n, c.Sources), Sources: c.Sources, Stopped: map[string]bool{}}
	for name, of := range n.Sources {
		p.Stopped[name] = of.Settings != nil && of.Settings.Stopped
	}
	if name == "overview" {
		p.addHistory(c.Overview, c.Sources, map[string]int64{})
		p.addMarks(marksOf(ctx, &c.lastChanges, n, c.Sources), c.Sources, n.At)
	}
	switch name {
	case "schedule":
		p.Ages = map[string]*histogram{}
		for _, source := range c.Sources {
			p.Ages[source] = ageHistogram(ctx, c.ages[source])
		}
	case "limiter":
		p.BurnDowns = map[string][]burnDown{}
		for _, source := range c.Sources {
			p.BurnDowns[source] = burnDowns(n.Sources[source].Limits, hourRate(c.Overview.History(source, 0)), n.At)
		}
	}
	if c.FaultScenarios != nil {
		p.Scenarios, p.Scenario = c.FaultScenarios.List(), n.FaultScenario
	}
	c.render(w, r, http.StatusOK, name, title, p)
}

// prefersJSON reports whether the client accepts JSON and no HTML. Every page then returns its data as
// JSON.
func prefersJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

func (c *livePages) overview(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "overview", "Overview")
}

func (c *livePages) queues(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "queues", "Queues")
}

func (c *livePages) limiter(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "limiter", "Limiter")
}

// setFaultScenario changes the fault scenario of a demonstration's upstream.
func (c *livePages) setFaultScenario(w http.ResponseWriter, r *http.Request, client access.Client) {
	if c.FaultScenarios == nil {
		c.reject(w, r, http.StatusNotFound, "This installation has no fault scenarios: its upstream is real.")
		return
	}
	name := r.PostFormValue("scenario")
	for _, k := range c.FaultScenarios.List() {
		if k.Name != name {
			continue
		}
		ctx, cancel := requestContext(r)
		defer cancel()
		err := c.writeAudit(ctx, client, "fault-scenario", "", map[string]string{"scenario": name})
		if err == nil {
			err = c.FaultScenarios.Set(ctx, name)
		}
		if err != nil {
			c.unavailable(w, r, "The fault scenario could not be changed.", err)
			return
		}
		redirectWithNotice(w, r, root, "fault-scenario")
		return
	}
	c.reject(w, r, http.StatusBadRequest, "Unknown fault scenario.")
}
