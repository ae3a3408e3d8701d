package deploy

const ofSource = `source=~"$source"`

var pipeline = board{
	uid: "freshet-pipeline", title: "freshet: the pipeline",
	about:     "From a wish for a refresh to its stored snapshot: the budget, the queues, the work, what protects it, what needs a human, and what is refreshed before anybody asks. Read it from the top.",
	variables: []string{"label_values(freshet_rate_limiter_limit, source)"},
	rows:      []row{rateLimit, lag, sla, circuits, deadLetters, prefetch},
}

var rateLimit = row{"Rate limit overview", []panel{
	{
		title: "Limiter now", unit: number, wide: 4, kind: stat,
		about:  "Normal: flowing, or unused on a quiet day. Ramping: calls come back after a brake. Braked: the upstream asked for a pause. Probing: it fails for everybody, and one call at a time looks. Stopped: somebody stopped it by hand; the audit says who. Starting quiet: Redis lost the limiter's state, a second or two.",
		states: []status{{1, "now", ""}}, colours: limiterStates,
		asks: one(highest("source, state", `rate_limiter_state{`+ofSource+`}`)+" == 1", "{{source}}: {{state}}"),
	},
	{
		title: "Stopped alone, and used up", unit: number, wide: 4, kind: stat,
		about: "Credentials, endpoints and budgets that are stopped alone, and values of policies' scopes of which nothing is left. Normal: none stopped; used up at the end of a window, or all the time while the rate of each is in use. Stopped: the upstream refuses that one, and what needs it waits; freshet limiter says which. All of them: the source stands still though it flows.",
		asks: all(one(highest("source", `rate_limiter_scope_breakers_open{`+ofSource+`}`), "{{source}} stopped alone"),
			one(highest("source", `rate_limiter_scopes_exhausted{`+ofSource+`}`), "{{source}} used up")),
	},
	{
		title: "Calls left this instant", unit: number, wide: 4, kind: stat,
		about: "What each policy lets out now: for HIGH (the global budget) and for LOW. Normal: a few of a window that is kept by lanes, as a second, since that is only what may go at once; 0 means that the whole rate is in use. A day at 0 for LOW is spent down to HIGH's reserve; at 0 for HIGH nothing goes until midnight of the policy's zone.",
		asks:  one(highest("policy, priority", `rate_limiter_remaining{`+ofSource+`}`), "{{policy}} {{priority}}"),
	},
	{
		title: "Calls a second, and the limit", unit: perSec, wide: 12,
		about: "Calls sent in the last whole second of all processes, with each policy's limit spread over its window. The dashed lines are adr-013's target, 450, and limit, 500. Normal: below the target. Above a second's limit: the contract with the upstream is broken; stop the source and look for processes with another quota. Flat at the target for long: there is more to do than budget.",
		lines: []line{warn(450), critical(500)},
		asks: all(
			one(total("source", `rate_limiter_rps{`+ofSource+`}`), "{{source}} sent"),
			one(part(highest("source, policy", `rate_limiter_limit{`+ofSource+`}`), highest("source, policy", `rate_limiter_window_seconds{`+ofSource+`}`)), "{{source}} limit of {{policy}}"),
		),
	},
	{
		title: "Budget left", unit: share, wide: 8, share: true,
		about: "What is left of the windows that are counted, as of a day, for HIGH and for LOW. Normal: it falls evenly and reaches a little above 0 when the window ends. LOW at 0 early: background work waits until the window ends. HIGH at 0: nobody's refresh is made. A window kept by lanes has no line here.",
		asks: one(highest("source, policy, priority", `rate_limiter_remaining{`+ofSource+`}`)+" / on (source, policy) group_left () ("+
			highest("source, policy", `rate_limiter_limit{`+ofSource+`}`)+" > 0) and on (source, policy) "+
			highest("source, policy", `rate_limiter_used{`+ofSource+`}`), "{{source}} {{policy}} {{priority}}"),
	},
	{
		title: "Budget used by policy", unit: share, wide: 8, share: true, lines: []line{warn(.9)},
		about: "The part of each counted window that is used. Normal: a day rises evenly and ends below 90 %. Steeper than on other days: look at the permits by lane beside it for who spends it.",
		asks: one(part(highest("source, policy", `rate_limiter_used{`+ofSource+`}`), highest("source, policy", `rate_limiter_limit{`+ofSource+`}`)),
			"{{source}} {{policy}}"),
	},
	{
		title: "Permits by lane", unit: perSec, wide: 8, stacked: true,
		about: "Permits spent, each on one call. Normal: LOW fills what HIGH leaves. HIGH alone for long: people ask for more than the rest can share. Nothing at all while calls wait: a brake, a stop, or no Redis.",
		asks:  one(rate("priority", `rate_limiter_acquired_total{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Wait for a permit, p95", unit: seconds, wide: 8,
		about: "Normal: HIGH some milliseconds; LOW seconds to minutes while it has a backlog. HIGH above a second: its share is used up, or a brake holds it.",
		asks:  quantiles(`rate_limiter_wait_seconds{`+ofSource+`}`, "{{priority}}", "priority", 95),
	},
	{
		title: "Calls that wait", unit: number, wide: 8,
		about: "Calls that wait for their permit. Normal: HIGH near 0; LOW up to what its workers hold at once. HIGH that stays up: see the limiter's state.",
		asks:  one(total("priority", `rate_limiter_waiting{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Permits beyond the horizon", unit: perMin, wide: 8, lines: []line{warn(10)},
		about: "Permits asked for and refused, since they lay too far ahead; nothing is lost, the caller comes back. Normal: 0 for HIGH, any number for LOW with a backlog. HIGH above 10 a minute, the line: people's refreshes are more than the budget.",
		asks:  one(minutely("priority", `rate_limiter_rejected_total{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Brakes and lapsed permits", unit: perMin, wide: 8,
		about: "Normal: no brakes. A brake that comes back: somebody else spends the same quota, or it is less than was configured; lower it. Lapsed permits: a few at a stop; many mean that processes are short of CPU.",
		asks: all(one(minutely("source", `rate_limiter_backoffs_total{`+ofSource+`}`), "{{source}} brakes"),
			one(minutely("source", `rate_limiter_lapsed_total{`+ofSource+`}`), "{{source}} lapsed")),
	},
	{
		title: "Part of the rate in use", unit: share, wide: 8, share: true,
		about: "Normal: 100 %. Less: calls come back after a brake, from half the rate to the whole within 10 seconds. Less for long: brakes follow each other, or the rate was lowered for the spread beside it.",
		asks:  one(highest("source", `rate_limiter_ramp_ratio{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Spread of calls on their way", unit: seconds, wide: 8,
		about: "By how much calls are delayed unevenly between permit and upstream. Normal: a few milliseconds. Above the quota's jitter the rate is lowered, so that none arrives too early: look for a busy CPU or a slow network.",
		asks:  one(highest("source", `rate_limiter_jitter_seconds{`+ofSource+`}`), "{{source}}"),
	},
}}

var lag = row{"Kafka lag trend", []panel{
	{
		title: "HIGH: records behind", unit: number, wide: 8, lines: []line{warn(1000), critical(5000)},
		about: "Records of HIGH that are not committed. Normal: near 0 and always below 1,000, the first line. Above: users wait. Above 5,000, the second, LOW stands back. No line at all: Kafka could not be asked for 30 seconds.",
		asks:  one(highest("topic", `kafka_consumer_lag{topic=~"${source}[.]update-priority-high"}`), "{{topic}}"),
	},
	{
		title: "LOW: records behind", unit: number, wide: 8,
		about: "Records of LOW that are not committed. Normal: rises with each round of background work and falls again. A rise that does not end: more is asked for than LOW's part of the budget can fetch.",
		asks:  one(highest("topic", `kafka_consumer_lag{topic=~"${source}[.]update-priority-low"}`), "{{topic}}"),
	},
	{
		title: "Age of the oldest record", unit: seconds, wide: 8, lines: []line{warn(1800)},
		about: "How long ago the oldest record that is not committed was asked for. Normal: HIGH some seconds, LOW less than 30 minutes, the line. Rising as fast as the clock: nothing is committed any more; see the breakers and the limiter. A record is lost at the end of its topic's retention, 24 hours for HIGH and 72 for LOW.",
		asks:  one(highest("priority", `kafka_consumer_lag_seconds{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Records that Kafka did not take", unit: perMin, wide: 8, lines: []line{critical(1)},
		about: "Normal: 0. Anything else: brokers are away or the producer's buffer is full. The lock is rolled back and the next read asks again, so nothing is lost, but readers see old snapshots for longer.",
		asks:  one(minutely("", `kafka_producer_send_failed_total`), "not acknowledged"),
	},
	{
		title: "Wishes by what coalescing decided", unit: perSec, wide: 8, stacked: true,
		about: "PUBLISHED and UPGRADED became records; the rest was covered by one under way, or held. Normal: much more is covered than published when many ask for the same. ERROR: Redis or the producer's buffer refuses. Much HELD: entities that failed before are asked for.",
		asks:  one(rate("outcome", `coalesced_total{`+ofSource+`}`), "{{outcome}}"),
	},
	{
		title: "Covered, overtaken, in conflict", unit: perMin, wide: 8, lines: []line{warn(100)},
		about: "Wishes that a request under way covered, LOW requests that a HIGH one overtook, and locks that were another's when Kafka answered. Normal: conflicts well below 100 a minute, the line. More: Kafka answers later than locks live.",
		asks: all(one(minutely("", `dedup_coalesce_hit_total`), "covered"), one(minutely("", `dedup_upgrade_total`), "overtaken"),
			one(minutely("", `dedup_lock_conflict_total`), "conflicts")),
	},
	{
		title: "Records that come and go", unit: perSec, wide: 12,
		about: "Records asked for beside records that reached an end. Normal: both alike over some minutes. More coming than going is what makes a lag.",
		asks: all(one(rate("priority", `coalesced_total{outcome=~"PUBLISHED|UPGRADED", `+ofSource+`}`), "{{priority}} asked for"),
			one(rate("priority", `settled_total{`+ofSource+`}`), "{{priority}} ended")),
	},
	{
		title: "LOW stands back", unit: number, wide: 12, kind: timeline,
		about:  "Whether LOW lets HIGH go first. Normal: no. Yes: HIGH has more than 5,000 records to do, and LOW goes on when it has no more than 1,000.",
		states: []status{{0, "no", "green"}, {1, "yes", "yellow"}},
		asks:   one(highest("source", `low_yielding{`+ofSource+`}`), "{{source}}"),
	},
}}

var deadLetters = row{"Dead letters", []panel{
	{
		title: "On the dead-letter topic", unit: number, wide: 8,
		about: "Records that need a human; the topic keeps each for 168 hours, and after that it is gone. Normal: few, and falling when they are older than a week.",
		asks:  one(highest("topic", `dlq_message_count{topic=~"${source}[.]update-dlq"}`), "{{topic}}"),
	},
	{
		title: "Growth in an hour", unit: number, wide: 8, lines: []line{critical(100)},
		about: "By how much the topic has grown since its lowest of the last hour, as the alert counts it. Normal: 0 to a few. Above 100, the line: the upstream has changed its answers, or some program writes records that are no requests.",
		asks: one("max by (topic) ("+name(`dlq_message_count{topic=~"${source}[.]update-dlq"}`)+
			" - min_over_time("+name(`dlq_message_count{topic=~"${source}[.]update-dlq"}`)+"[1h]))", "{{topic}}"),
	},
	{
		title: "Reasons, of the time shown", unit: number, wide: 8, kind: bars,
		about: "Why letters died. Normal: nothing, or a few of one kind. UPSTREAM_4XX and PARSE_ERROR: the upstream's answers have changed. UPSTREAM_5XX and UPSTREAM_UNREACHABLE: single entities that it can't answer. UNDECODABLE and the like: look for the program that wrote them.",
		asks:  one("sort_desc("+rise("reason", `update_process_error_total{reason=~"[A-Z].*", `+ofSource+`}`, "$__range")+" > 0)", "{{reason}}"),
	},
	{
		title: "Dead letters by lane", unit: perMin, wide: 8,
		about: "Requests that became dead letters. Normal: hardly any. HIGH: people look at entities that the upstream can't answer; LOW: background work found them.",
		asks:  one(minutely("priority", `settled_total{end="dead_letter", `+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Suspended entities, in an hour", unit: number, wide: 8,
		about: "Entities that nobody asks for any more, since they died for the third time in a row. Normal: 0 to a few. Many: the upstream has dropped or renamed what is asked for.",
		asks:  one(rise("source", `entities_suspended_total{`+ofSource+`}`, "1h"), "{{source}}"),
	},
	{
		title: "Retries", unit: perMin, wide: 8,
		about: "Failures that were given a later try, and tries that were asked for when due. Normal: the second follows the first by some minutes. Scheduled but never asked for: the database can't be read for what is due, or no worker runs.",
		asks: all(one(minutely("source", `settled_total{end="retrying", `+ofSource+`}`), "{{source}} scheduled"),
			one(minutely("source", `retries_requested_total{`+ofSource+`}`), "{{source}} asked for")),
	},
}}
