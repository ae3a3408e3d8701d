package console

import (
	"net/http"

	"github.com/freshet/freshet/access"
)

// livePage is a page that shows what is going on now.
type livePage struct {
	facts
	Sources []string
	Kinds   []WeatherKind // of the weather; nil: there is none
	Weather string
}

// Table returns one of the live tables.
func (p livePage) Table(id, source string) headedTable {
	if source != "" {
		id += "." + source
	}
	return p.Tables[id]
}

// Fact returns what a live element says.
func (p livePage) Fact(id string) factAt { return factAt{id, p.Facts[id]} }

// factAt is a fact, and where it stands.
type factAt struct {
	ID string
	fact
}

func (c *Console) showLive(w http.ResponseWriter, r *http.Request, name, title string) {
	ctx, cancel := bounded(r)
	defer cancel()
	n := c.sampler.now(ctx)
	p := livePage{facts: c.factsOf(n, c.Sources), Sources: c.Sources}
	if c.Weather != nil {
		p.Kinds, p.Weather = c.Weather.Kinds(), n.Weather
	}
	c.render(w, r, http.StatusOK, name, title, p)
}

func (c *Console) overview(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "overview", "Overview")
}

func (c *Console) queues(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "queues", "Queues")
}

func (c *Console) limiter(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "limiter", "Limiter")
}

// setWeather has the upstream of a demonstration behave in another way.
func (c *Console) setWeather(w http.ResponseWriter, r *http.Request, who access.Client) {
	if c.Weather == nil {
		c.refuse(w, r, http.StatusNotFound, "This installation has no weather: its upstream is a real one.")
		return
	}
	name := r.PostFormValue("weather")
	for _, k := range c.Weather.Kinds() {
		if k.Name != name {
			continue
		}
		ctx, cancel := bounded(r)
		defer cancel()
		err := c.note(ctx, who, "fault-scenario", "", map[string]string{"scenario": name})
		if err == nil {
			err = c.Weather.Set(ctx, name)
		}
		if err != nil {
			c.trouble(w, r, "The weather could not be changed.", err)
			return
		}
		done(w, r, root, "weather")
		return
	}
	c.refuse(w, r, http.StatusBadRequest, "There is no such weather.")
}
