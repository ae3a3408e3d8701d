package status

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/freshet/freshet/webhooks"
)

// addHooks adds the deliveries that a metric family contains to the counts of their sources.
func addHooks(all map[string]ProcessCounts, family *dto.MetricFamily) {
	if name := family.GetName(); name != deliveriesMetric && name != lastDeliveryMetric {
		return
	}
	for _, m := range family.GetMetric() {
		labels := labelsOf(m)
		c, known := all[labels["source"]]
		if !known {
			continue
		}
		h := c.Hooks[labels["name"]]
		if h.Results == nil {
			h.Results = map[string]int64{}
		}
		if result := labels["result"]; result != "" {
			h.Results[result] += int64(m.GetCounter().GetValue())
		} else {
			h.LastMS = int64(m.GetGauge().GetValue() * 1000)
		}
		if c.Hooks == nil {
			c.Hooks = map[string]webhooks.Counts{}
		}
		c.Hooks[labels["name"]] = h
		all[labels["source"]] = c
	}
}
