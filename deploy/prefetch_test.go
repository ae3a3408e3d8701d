package deploy

// prefetch is what is refreshed before anybody asks, and what follows from changes.
var prefetch = row{"Prefetch", []panel{
	{
		title: "Asked for, and what may be fed", unit: perSec, wide: 8,
		about: "Entities that were asked for as they came due, and the calls a second that may be fed into LOW now. Normal: below the second, and close to it while the budget is used up; an entity may take several calls. The rate at 0: LOW has nothing left, is 15 minutes behind, or the source is stopped. Nothing asked for below a rate: nothing is due, or no scheduler can look.",
		asks: all(one(rate("source", `prefetch_requested_total{`+ofSource+`}`), "{{source}} requested"),
			one(total("source", `prefetch_rate{`+ofSource+`}`), "{{source}} may be fed")),
	},
	{
		title: "How late entities are claimed", unit: seconds, wide: 8,
		about: "From an entity's due time to its claim. Normal: some seconds, minutes after the time at which the day's content is ready. Rising over days: more is due than may be fed; raise LOW's share or lengthen the intervals.",
		asks:  quantiles(`prefetch_delay_seconds{`+ofSource+`}`, "{{source}}", "source", 50, 95),
	},
	{
		title: "How far behind", unit: seconds, wide: 8, lines: []line{warn(3600)},
		about: "How long ago the entity was due that is due first, as the scheduler says that knows best. Normal: near 0, and below an hour, the line; for a moment more when the day's content is ready. Rising as fast as the clock: nothing is fed, or no scheduler can look. No line: there is no scheduler.",
		asks:  one(lowest("source", `prefetch_lag_seconds{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Skipped when due, by reason", unit: perMin, wide: 8, stacked: true,
		about: "fresh: readers had them checked a moment ago. held: a failure holds them. inactive: taken out, or closed by their content. waiting: the day's content is not ready. off: their facet is not prefetched. Normal: fewer than are asked for. Much held: see the dead letters; much inactive: they need not be registered.",
		asks:  one(minutely("reason", `prefetch_skipped_total{`+ofSource+`}`), "{{reason}}"),
	},
	{
		title: "Price of a call", unit: number, wide: 8,
		about: "What a call must be worth in the adaptive mode, in reads that it keeps from seeing the past. Normal: level over days, and it changes little by little. Rising: more is worth checking than may be. Without adaptive facets it stands still.",
		asks:  one(highest("source", `prefetch_price{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Taken over from other schedulers", unit: perMin, wide: 8,
		about: "Entities that a scheduler had claimed and not asked for in time. Normal: 0, but for when one was killed. Again and again: schedulers die, or Kafka takes longer than a claim lasts, 30 seconds.",
		asks:  one(minutely("source", `prefetch_taken_over_total{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "What follows from changes", unit: perSec, wide: 8,
		about: "Changes that were told on the change topic, refreshes of other facets that they triggered, and triggers that rested since their facet had just been refreshed. Normal: as changed in the requests by how they ended, for facets that are told or trigger; 0 where none is.",
		asks: all(one(rate("source", `changes_published_total{`+ofSource+`}`), "{{source}} told"),
			one(rate("source", `triggers_requested_total{`+ofSource+`}`), "{{source}} triggered"),
			one(rate("source", `triggers_skipped_total{`+ofSource+`}`), "{{source}} rested")),
	},
	{
		title: "Changes that wait", unit: seconds, wide: 8, lines: []line{warn(600)},
		about: "How long ago the oldest change was fetched of which not all that follows has happened. Normal: some seconds. Above 10 minutes, the line: Kafka does not acknowledge, Redis refuses triggers, or the database lets nothing be claimed. Nothing is lost.",
		asks:  one(highest("source", `outbox_lag_seconds{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Reads told to the schedule, and snapshots deleted", unit: perMin, wide: 8,
		about: "Reads of prefetched facets as the schedule was told of them, those that it was not, and snapshots that were deleted at the end of keepFor. Normal: told goes with the reads, nothing is untold, few are deleted. Untold failed: the database does not take them; full: too many entities are read at once. A wave of deletions: much of one import was never read again.",
		asks: all(one(minutely("", `reads_recorded_total`), "told"), one(minutely("reason", `reads_unrecorded_total`), "untold: {{reason}}"),
			one(minutely("source, facet", `retention_deleted_total{`+ofSource+`}`), "{{source}} {{facet}} deleted")),
	},
}}
