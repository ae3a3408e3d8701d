package observe_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/freshet/freshet/observe"
)

func ExampleConditions() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	outage := observe.Condition{Event: "upstream_outage", Failing: "upstream outage", Recovered: "upstream recovered", Attr: "source", Value: "nexon"}
	var conditions observe.Conditions
	for range 3 { // three failures, of which only the first is logged
		conditions.Warn(log, outage, errors.New("status 503"))
	}
	fmt.Println(conditions.Active())
	// Output:
	// level=WARN msg="upstream outage" event=upstream_outage source=nexon err="status 503"
	// true
}

func ExampleWithTraceParent() {
	ctx := observe.WithTraceParent(context.Background(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	fmt.Println(observe.TraceParent(ctx))
	// Output: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
}
