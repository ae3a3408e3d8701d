package deploy

const ofInstance = `instance=~"$instance"`

var process = board{
	uid: "freshet-process", title: "freshet: one process",
	description: "The runtime of a process and its connections. Choose the instance from another dashboard or an alert.",
	variables:   []string{"label_values(freshet_build_info, instance)"},
	rows: []row{
		{"Runtime", []panel{
			{
				title: "CPU", unit: number, width: 8,
				description: "Cores in use. Normal: below the configured limit; a worker at full rate needs about one. At the limit: permits expire and reads become slow; add a process.",
				queries:     oneQuery(perInstance("process_cpu_seconds_total"), "{{instance}}"),
			},
			{
				title: "Memory", unit: size, width: 8,
				description: "Resident memory, and the heap in use. Normal: constant after warming up; a query service holds its cache. A rise over days: a leak; take a heap profile before it is killed.",
				queries: joinQueries(oneQuery(maxBy("instance", `process_resident_memory_bytes{`+ofInstance+`}`), "{{instance}} resident"),
					oneQuery(maxBy("instance", `go_memstats_heap_inuse_bytes{`+ofInstance+`}`), "{{instance}} heap")),
			},
			{
				title: "Goroutines", unit: number, width: 8,
				description: "Normal: follows the records in flight and the open requests. A rise that never falls: requests hang and leave goroutines behind.",
				queries:     oneQuery(maxBy("instance", `go_goroutines{`+ofInstance+`}`), "{{instance}}"),
			},
			{
				title: "Garbage collection pauses", unit: share, width: 8,
				description: "The part of each second in which the program is paused. Normal: far below 1 %. More: too little memory for the cache.",
				queries:     oneQuery(perInstance("go_gc_duration_seconds_sum"), "{{instance}}"),
			},
			{
				title: "Allocation", unit: "Bps", width: 8,
				description: "Bytes allocated a second. Normal: follows the load. Higher than before for the same load: an upgrade increased the cost.",
				queries:     oneQuery(perInstance("go_memstats_alloc_bytes_total"), "{{instance}}"),
			},
			{
				title: "File descriptors in use", unit: share, width: 8, share: true, lines: []line{warn(.8)},
				description: "Ratio of the allowed file descriptors; most are connections. Normal: a few per cent. Above 80 %, the line: connections leak, or one process has too many clients.",
				queries: oneQuery(ratio(maxBy("instance", `process_open_fds{`+ofInstance+`}`), maxBy("instance", `process_max_fds{`+ofInstance+`}`)),
					"{{instance}}"),
			},
			{
				title: "Uptime", unit: seconds, width: 24,
				description: "Normal: it rises. Each fall is a restart; several in a row: the process crashes, and its log before each start has the reason.",
				queries:     oneQuery("time() - "+maxBy("instance", `process_start_time_seconds{`+ofInstance+`}`), "{{instance}}"),
			},
		}},
		{"PostgreSQL", []panel{
			{
				title: "Connections", unit: number, width: 8,
				description: "Connections of the pool: in use, idle and max. Normal: in use stays below max. In use at max for long: queries are slow, or the pool is too small.",
				queries: joinQueries(oneQuery(pool("pgxpool_acquired_conns"), "{{instance}} in use"), oneQuery(pool("pgxpool_idle_conns"), "{{instance}} idle"),
					oneQuery(pool("pgxpool_max_conns"), "{{instance}} max")),
			},
			{
				title: "Wait for a connection", unit: seconds, width: 8,
				description: "Mean wait of requests that found no free connection. Normal: no line, or some milliseconds. More: see the connections in use.",
				queries: oneQuery(ratio(perInstance("pgxpool_empty_acquire_wait_time_ns")+" / 1e9", perInstance("pgxpool_empty_acquire")),
					"{{instance}}"),
			},
			{
				title: "Waits, cancelled waits, new connections", unit: perMin, width: 8,
				description: "How often no connection was free, how often the caller cancelled its wait, and connections opened. Normal: few of each. Many new connections: a component between the process and the database closes them.",
				queries: joinQueries(oneQuery("60 * "+perInstance("pgxpool_empty_acquire"), "{{instance}} waited"),
					oneQuery("60 * "+perInstance("pgxpool_canceled_acquire_count"), "{{instance}} cancelled"),
					oneQuery("60 * "+perInstance("pgxpool_new_conns_count"), "{{instance}} opened")),
			},
		}},
		{"Redis", []panel{
			{
				title: "Connections", unit: number, width: 8,
				description: "Connections of the pool: all and idle. Normal: most are idle. None idle for long: Redis is slow.",
				queries: joinQueries(oneQuery(pool("redis_pool_conn_total_current"), "{{instance}} all"),
					oneQuery(pool("redis_pool_conn_idle_current"), "{{instance}} idle")),
			},
			{
				title: "Pool misses, timeouts, stale connections", unit: perMin, width: 8,
				description: "Normal: some misses after a start. Timeouts: no connection was free in time, so Redis is slow or the pool too small. Stale: connections were closed by the other side.",
				queries: joinQueries(oneQuery("60 * "+perInstance("redis_pool_miss_total"), "{{instance}} misses"),
					oneQuery("60 * "+perInstance("redis_pool_timeout_total"), "{{instance}} timed out"),
					oneQuery("60 * "+perInstance("redis_pool_conn_stale_total"), "{{instance}} stale")),
			},
			{
				title: "Commands, p95", unit: seconds, width: 8, lines: []line{warn(.05)},
				description: "Round trips of this process. Normal: some milliseconds; 50 ms, the line, is too long. Slow here and fast in other processes: this machine or its network.",
				queries:     quantiles(`redis_command_duration_seconds{`+ofInstance+`}`, "{{command}}", "command", 95),
			},
		}},
		{"Kafka", []panel{
			{
				title: "Network traffic", unit: "Bps", width: 8,
				description: "Bytes read from and written to brokers, by client. Normal: follows the records. Reads without records: a client fetches the same records repeatedly.",
				queries:     joinQueries(oneQuery(client("read_bytes_total"), "{{client}} read"), oneQuery(client("write_bytes_total"), "{{client}} written")),
			},
			{
				title: "Connections opened, and errors", unit: perMin, width: 8,
				description: "Normal: connections are opened at the start and after idle ones were closed; no errors. Connect errors: a broker is unavailable. Read and write errors: a connection was lost during a request.",
				queries: joinQueries(oneQuery("60 * "+client("connects_total"), "{{client}} opened"), oneQuery("60 * "+client("connect_errors_total"), "{{client}} connect errors"),
					oneQuery("60 * "+client("read_errors_total"), "{{client}} read errors"), oneQuery("60 * "+client("write_errors_total"), "{{client}} write errors")),
			},
			{
				title: "Buffered records", unit: number, width: 8,
				description: "Records that wait to be sent, and fetched records that wait to be processed. Normal: none to send for longer than a moment. Many to send: Kafka does not respond. Many fetched: the workers are paused.",
				queries: joinQueries(oneQuery(sumBy("client", `kafka_client_buffered_produce_records_total{`+ofInstance+`}`), "{{client}} to send"),
					oneQuery(sumBy("client", `kafka_client_buffered_fetch_records_total{`+ofInstance+`}`), "{{client}} fetched")),
			},
		}},
	},
}

func pool(gauge string) string { return sumBy("instance", gauge+"{"+ofInstance+"}") }

func perInstance(counter string) string { return rate("instance", counter+"{"+ofInstance+"}") }

func client(counter string) string {
	return rate("client", "kafka_client_"+counter+"{"+ofInstance+"}")
}
