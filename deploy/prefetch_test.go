package deploy

// prefetch is the dashboard row about the scheduler and the outbox.
var prefetch = row{"Prefetch", []panel{
	{
		title: "Prefetch requests, and the allowed rate", unit: perSec, width: 8,
		description: "Due entities that were enqueued, and the calls a second that may be enqueued to LOW now. Normal: below the rate, and close to it while the budget is used; an entity may take several calls. The rate at 0: LOW has nothing left, has a lag of 15 minutes, or the source is stopped. No requests below the rate: no entity is due, or no scheduler can read them.",
		queries: joinQueries(oneQuery(rate("source", `prefetch_requested_total{`+ofSource+`}`), "{{source}} requested"),
			oneQuery(sumBy("source", `prefetch_rate{`+ofSource+`}`), "{{source}} allowed")),
	},
	{
		title: "Delay of claims", unit: seconds, width: 8,
		description: "From the due time of an entity to its claim. Normal: some seconds; minutes after the time at which the day's content is ready. Rising over days: more is due than the budget allows; raise the share of LOW or lengthen the intervals.",
		queries:     quantiles(`prefetch_delay_seconds{`+ofSource+`}`, "{{source}}", "source", 50, 95),
	},
	{
		title: "Prefetch lag", unit: seconds, width: 8, lines: []line{warn(3600)},
		description: "How long ago the oldest due entity was due, in the scheduler with the smallest lag. Normal: near 0, and below an hour, the line; briefly more when the day's content is ready. Rising as fast as the clock: nothing is enqueued, or no scheduler can read due entities. No line: there is no scheduler.",
		queries:     oneQuery(minBy("source", `prefetch_lag_seconds{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Skipped when due, by reason", unit: perMin, width: 8, stacked: true,
		description: "fresh: a read refreshed it a moment ago. held: a failure holds it. inactive: disabled, or closed by its content. waiting: the day's content is not ready. off: its facet is not prefetched. Normal: fewer than are enqueued. Many held: see the dead letters. Many inactive: they need not be registered.",
		queries:     oneQuery(perMinute("reason", `prefetch_skipped_total{`+ofSource+`}`), "{{reason}}"),
	},
	{
		title: "Price of a call", unit: number, width: 8,
		description: "In the adaptive mode, the number of outdated reads that a call must prevent. Normal: constant over days, with small changes. Rising: more entities are worth a check than the budget allows. Without adaptive facets it does not change.",
		queries:     oneQuery(maxBy("source", `prefetch_price{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Claims taken over", unit: perMin, width: 8,
		description: "Entities that another scheduler had claimed and not enqueued in time. Normal: 0, except after a scheduler was killed. Repeatedly: schedulers crash, or Kafka takes longer than a claim lasts, 30 seconds.",
		queries:     oneQuery(perMinute("source", `prefetch_taken_over_total{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Change events and triggers", unit: perSec, width: 8,
		description: "Published change events, refreshes of other facets that were triggered, and triggers that were skipped because their facet had just been refreshed. Normal: like changed in the panel Requests by end, for facets with change events or triggers; 0 for others.",
		queries: joinQueries(oneQuery(rate("source", `changes_published_total{`+ofSource+`}`), "{{source}} published"),
			oneQuery(rate("source", `triggers_requested_total{`+ofSource+`}`), "{{source}} triggered"),
			oneQuery(rate("source", `triggers_skipped_total{`+ofSource+`}`), "{{source}} skipped")),
	},
	{
		title: "Outbox lag", unit: seconds, width: 8, lines: []line{warn(600)},
		description: "Age of the oldest outbox event. Normal: some seconds. Above 10 minutes, the line: Kafka does not acknowledge, Redis rejects triggers, or the database allows no claims. Nothing is lost.",
		queries:     oneQuery(maxBy("source", `outbox_lag_seconds{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Recorded reads, and deleted rows", unit: perMin, width: 8,
		description: "Reads of prefetched facets that were recorded for the schedule, reads that were not, snapshots deleted after keepFor, and rows of other tables deleted after their period in the section retention. Normal: recorded reads follow the reads, none is unrecorded, few snapshots are deleted. Unrecorded failed: the database rejects them; full: too many entities are read at once. Many deletions: much of one import was never read again.",
		queries: joinQueries(oneQuery(perMinute("", `reads_recorded_total`), "recorded"), oneQuery(perMinute("reason", `reads_unrecorded_total`), "unrecorded: {{reason}}"),
			oneQuery(perMinute("source, facet", `retention_deleted_total{`+ofSource+`}`), "{{source}} {{facet}} deleted"),
			oneQuery(perMinute("table", `maintenance_deleted_total`), "{{table}} deleted")),
	},
	{
		title: "Runs", unit: number, width: 8,
		description: "Active runs, and their open steps. Normal: open steps fall until the runs end. Constant open steps: the LOW lane has no quota, or the upstream fails.",
		queries: joinQueries(oneQuery(maxBy("source", `runs_active{`+ofSource+`}`), "{{source}} active"),
			oneQuery(maxBy("source", `run_steps_open{`+ofSource+`}`), "{{source}} open steps")),
	},
	{
		title: "Steps of runs, by end", unit: perMin, width: 8, stacked: true,
		description: "Ended steps of runs. Normal: mostly DONE. Many FAILED: `freshet runs show` groups the failures of a run.",
		queries:     oneQuery(perMinute("state", `run_steps_ended_total{`+ofSource+`}`), "{{state}}"),
	},
	{
		title: "Lag of runs", unit: seconds, width: 8, lines: []line{warn(300)},
		description: "Time for which the next step of a run has been due. Normal: below a second. Above 5 minutes, the line: no worker can claim steps.",
		queries:     oneQuery("min by (source) ("+metricName(`runs_lag_seconds{`+ofSource+`}`)+")", "{{source}}"),
	},
}}
