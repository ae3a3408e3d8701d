package deploy

// collections is the row "Collections" of the dashboard.
var collections = row{"Collections", []panel{
	{
		title: "Pages of collections", unit: perSec, width: 8, stacked: true,
		description: "Fetched pages by outcome. Normal: mostly unchanged and not_modified after the first walks. moved: two requests fetched the same page; a few after a rebalance. shrunk: a walk found far fewer items than are stored, and its request became a dead letter. Empty without collections.",
		queries:     oneQuery(rate("outcome", `collection_pages_total{`+ofSource+`}`), "{{outcome}}"),
	},
	{
		title: "Items stored and deleted", unit: perMin, width: 8,
		description: "Items that were stored because they are new or changed, items that the upstream no longer has, and items that expired (keep, maxItems). Normal: follows the changes of the upstream. All items changed in each walk: a value such as a counter changes; add it to ignore.",
		queries:     oneQuery(perMinute("change", `collection_items_total{`+ofSource+`}`), "{{change}}"),
	},
	{
		title: "Ended walks", unit: perMin, width: 8,
		description: "Walks that have reached the last page, and walks that were abandoned: the request of a page became a dead letter, or the settings changed. Normal: abandoned only after a change of the settings. Pages without ended walks: the lists are long, or the LOW budget is small.",
		queries:     oneQuery(perMinute("result", `collection_walks_total{`+ofSource+`}`), "{{result}}"),
	},
}}
