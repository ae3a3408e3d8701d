package consumer

import (
	"log/slog"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// base has what all parts of a worker share.
type base struct {
	config     Config
	source     *source.Source
	lane       schemas.Lane
	log        *slog.Logger
	metrics    *metrics
	tracer     observe.Tracer
	conditions observe.Conditions
}
