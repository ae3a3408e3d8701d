package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/freshet/freshet/source"
)

// secretEvery is how often a credential's file is read: it has no other way to say
// that it was changed.
const secretEvery = 2 * time.Second

// followSecret has a source use the credential that its file holds now, and tells
// of each change, until ctx ends. A file that can't be read, or is empty, changes
// nothing: it may be in the middle of being written. If it stays so, that is said.
func followSecret(ctx context.Context, auth source.Auth, s *source.Source, changed func(), log *slog.Logger) error {
	if auth.SecretFile == "" {
		return nil
	}
	var known string // the source is given what is found first, too: it may have changed since
	failures := 0
	tick := time.NewTicker(secretEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := requireSecret(auth)
		if err != nil {
			if failures++; failures == 3 {
				log.Warn("the credential's file can't be used; the credential stays as it was", "source", s.Name(), "err", err)
			}
			continue
		}
		failures = 0
		if now == known {
			continue
		}
		first := known == ""
		known = now
		if err := s.SetCredential(now); err != nil {
			log.Error("the changed credential can't be used; the one before stays", "source", s.Name(), "err", err)
			continue
		}
		if !first {
			log.Info("the credential was changed", "source", s.Name())
			changed()
		}
	}
}
