package deploy

const ofInstance = `instance=~"$instance"`

var process = board{
	uid: "freshet-process", title: "freshet: one process",
	about:     "The runtime of a process and its connections. Choose the instance that another dashboard or an alert has named.",
	variables: []string{"label_values(freshet_build_info, instance)"},
	rows: []row{
		{"Runtime", []panel{
			{
				title: "CPU", unit: number, wide: 8,
				about: "Cores in use. Normal: below the limit that was set for it; a worker at full rate needs about one. At the limit: permits lapse and reads become slow; add a process.",
				asks:  one(perInstance("process_cpu_seconds_total"), "{{instance}}"),
			},
			{
				title: "Memory", unit: size, wide: 8,
				about: "Resident memory, and the heap in use. Normal: level after warming up; a query process holds what it remembers. A rise over days: a leak; take a heap profile before it is killed.",
				asks: all(one(highest("instance", `process_resident_memory_bytes{`+ofInstance+`}`), "{{instance}} resident"),
					one(highest("instance", `go_memstats_heap_inuse_bytes{`+ofInstance+`}`), "{{instance}} heap")),
			},
			{
				title: "Goroutines", unit: number, wide: 8,
				about: "Normal: goes with the records in flight and the open requests. A rise that never falls: something hangs and each request leaves one behind.",
				asks:  one(highest("instance", `go_goroutines{`+ofInstance+`}`), "{{instance}}"),
			},
			{
				title: "Time in garbage collection's pauses", unit: share, wide: 8,
				about: "The part of each second in which the program stands still. Normal: far below 1 %. More: too little memory for what is remembered.",
				asks:  one(perInstance("go_gc_duration_seconds_sum"), "{{instance}}"),
			},
			{
				title: "Allocation", unit: "Bps", wide: 8,
				about: "Bytes allocated a second. Normal: goes with the work. Higher than before for the same work: an upgrade made something more costly.",
				asks:  one(perInstance("go_memstats_alloc_bytes_total"), "{{instance}}"),
			},
			{
				title: "File descriptors in use", unit: share, wide: 8, share: true, lines: []line{warn(.8)},
				about: "Of those the process may open; connections are most of them. Normal: a few per cent. Above 80 %, the line: connections leak, or there are too many clients for one process.",
				asks: one(part(highest("instance", `process_open_fds{`+ofInstance+`}`), highest("instance", `process_max_fds{`+ofInstance+`}`)),
					"{{instance}}"),
			},
			{
				title: "Time since the start", unit: seconds, wide: 24,
				about: "Normal: rises. Each fall is a restart; several in a row: it crashes, and the end of its log before each start says why.",
				asks:  one("time() - "+highest("instance", `process_start_time_seconds{`+ofInstance+`}`), "{{instance}}"),
			},
		}},
		{"PostgreSQL", []panel{
			{
				title: "Connections", unit: number, wide: 8,
				about: "Of the pool: in use, idle, and how many it may have. Normal: in use stays below the most. In use at the most for long: queries are slow, or the pool is too small.",
				asks: all(one(pool("pgxpool_acquired_conns"), "{{instance}} in use"), one(pool("pgxpool_idle_conns"), "{{instance}} idle"),
					one(pool("pgxpool_max_conns"), "{{instance}} at most")),
			},
			{
				title: "Wait for a connection", unit: seconds, wide: 8,
				about: "The mean wait of those that had to wait, since no connection was free. Normal: no line, or some milliseconds. More: see the connections in use.",
				asks: one(part(perInstance("pgxpool_empty_acquire_wait_time_ns")+" / 1e9", perInstance("pgxpool_empty_acquire")),
					"{{instance}}"),
			},
			{
				title: "Waits, gave up, new connections", unit: perMin, wide: 8,
				about: "How often nothing was free, how often the caller gave up, and connections opened. Normal: few of each. Many new connections: something between here and the database closes them.",
				asks: all(one("60 * "+perInstance("pgxpool_empty_acquire"), "{{instance}} waited"),
					one("60 * "+perInstance("pgxpool_canceled_acquire_count"), "{{instance}} gave up"),
					one("60 * "+perInstance("pgxpool_new_conns_count"), "{{instance}} opened")),
			},
		}},
		{"Redis", []panel{
			{
				title: "Connections", unit: number, wide: 8,
				about: "Of the pool: all, and those idle. Normal: most are idle. None idle for long: Redis is slow.",
				asks: all(one(pool("redis_pool_conn_total_current"), "{{instance}} all"),
					one(pool("redis_pool_conn_idle_current"), "{{instance}} idle")),
			},
			{
				title: "Not found in the pool, timed out, stale", unit: perMin, wide: 8,
				about: "Normal: some dials after a start. Timed out: nobody got a connection in time, so Redis is slow or the pool too small. Stale: connections were closed from outside.",
				asks: all(one("60 * "+perInstance("redis_pool_miss_total"), "{{instance}} dialled"),
					one("60 * "+perInstance("redis_pool_timeout_total"), "{{instance}} timed out"),
					one("60 * "+perInstance("redis_pool_conn_stale_total"), "{{instance}} stale")),
			},
			{
				title: "Commands, p95", unit: seconds, wide: 8, lines: []line{warn(.05)},
				about: "Round trips as this process sees them. Normal: some milliseconds; 50 ms, the line, is too long. Slow here and fast in other processes: this machine or its network.",
				asks:  quantiles(`redis_command_duration_seconds{`+ofInstance+`}`, "{{command}}", "command", 95),
			},
		}},
		{"Kafka", []panel{
			{
				title: "Bytes on the wire", unit: "Bps", wide: 8,
				about: "Read from and written to brokers, by client. Normal: goes with the records. Reads without records: a client fetches the same again and again.",
				asks:  all(one(client("read_bytes_total"), "{{client}} read"), one(client("write_bytes_total"), "{{client}} written")),
			},
			{
				title: "Connections opened, and errors", unit: perMin, wide: 8,
				about: "Normal: connections are opened at the start and when idle ones were closed; no errors. Errors of connecting: a broker is away. Of reading and writing: it was lost in the midst of a request.",
				asks: all(one("60 * "+client("connects_total"), "{{client}} opened"), one("60 * "+client("connect_errors_total"), "{{client}} not opened"),
					one("60 * "+client("read_errors_total"), "{{client}} read errors"), one("60 * "+client("write_errors_total"), "{{client}} write errors")),
			},
			{
				title: "Records in buffers", unit: number, wide: 8,
				about: "Records that wait to be sent, and that were fetched and wait to be worked. Normal: none to send for longer than a moment. Many to send: Kafka does not answer. Many fetched: the workers are held.",
				asks: all(one(total("client", `kafka_client_buffered_produce_records_total{`+ofInstance+`}`), "{{client}} to send"),
					one(total("client", `kafka_client_buffered_fetch_records_total{`+ofInstance+`}`), "{{client}} fetched")),
			},
		}},
	},
}

func pool(gauge string) string { return total("instance", gauge+"{"+ofInstance+"}") }

func perInstance(counter string) string { return rate("instance", counter+"{"+ofInstance+"}") }

func client(counter string) string {
	return rate("client", "kafka_client_"+counter+"{"+ofInstance+"}")
}
