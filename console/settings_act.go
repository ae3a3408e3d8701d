package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

// setField sets what one field of a policy says; an empty one, and one that says what is
// configured, return it to that.
func setField(of *settings.PolicyPatch, field int, text string, f policyField) error {
	back := text == "" || text == f.Configured
	number := func(to *settings.Member[int]) error {
		if back {
			*to = settings.Configured[int]()
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("%s: %q must be a whole number", f.Label, shown(text, 40))
		}
		*to = settings.Set(n)
		return nil
	}
	switch field {
	case 0:
		return number(&of.Limit)
	case 1:
		return number(&of.Target)
	case 3:
		return number(&of.LowReserve)
	}
	if back {
		of.HighReserve = settings.Configured[limiter.Reserve]()
		return nil
	}
	reserve, err := limiter.ParseReserve(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Label, err)
	}
	of.HighReserve = settings.Set(reserve)
	return nil
}

// orderFor reads for which source an order is, by whom, why, and of which revision.
func (c *Console) orderFor(r *http.Request, who access.Client) (o settings.Order, err error) {
	o = settings.Order{Source: r.PathValue("source"), Actor: who.Name, Note: strings.TrimSpace(r.PostFormValue("note"))}
	if err := checkNote(o.Note); err != nil {
		return o, err
	}
	if text := r.PostFormValue("revision"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return o, errors.New("the revision is no number; look at the page again")
		}
		o.Revision = &n
	}
	return o, nil
}

// change changes a quota, if it is still as the form was made for.
func (c *Console) change(w http.ResponseWriter, r *http.Request, who access.Client) {
	o, err := c.orderFor(r, who)
	if !c.known(o.Source) {
		c.refuse(w, r, http.StatusNotFound, "There is no such source.")
		return
	}
	if err == nil && o.Revision == nil {
		err = errors.New("the revision is missing; look at the page again")
	}
	if err != nil {
		c.showSettings(w, r, http.StatusBadRequest, o.Source, sentence(err))
		return
	}
	ctx, cancel := bounded(r)
	defer cancel()
	state, err := c.Limits.Get(ctx, o.Source)
	if err == nil && *o.Revision != state.Revision {
		err = &settings.ConflictError{Source: o.Source, Wanted: *o.Revision, Found: state.Revision}
	}
	if err != nil {
		c.changeFailed(w, r, o.Source, err)
		return
	}
	patch, changed, err := changeOf(r, state)
	switch {
	case err != nil:
		c.showSettings(w, r, http.StatusBadRequest, o.Source, sentence(err))
	case !changed:
		done(w, r, root+"/settings", "unchanged")
	default:
		if _, err := c.Limits.Change(ctx, o, patch); err != nil {
			c.changeFailed(w, r, o.Source, err)
			return
		}
		done(w, r, root+"/settings", "changed")
	}
}

// changeFailed says why a quota stays as it was.
func (c *Console) changeFailed(w http.ResponseWriter, r *http.Request, source string, err error) {
	var status int
	switch {
	case as[*settings.NoSourceError](err):
		status = http.StatusNotFound
	case as[*settings.RefusedError](err):
		status = http.StatusUnprocessableEntity
	case as[*settings.ConflictError](err):
		status = http.StatusPreconditionFailed
	case errors.Is(err, settings.ErrBusy):
		status = http.StatusConflict
	default:
		c.trouble(w, r, "The settings can't be changed.", err)
		return
	}
	c.showSettings(w, r, status, source, sentence(err))
}

func as[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// sentence is an error as a sentence of a page.
func sentence(err error) string {
	text := shown(err.Error(), errorShown)
	return strings.ToUpper(text[:1]) + strings.ReplaceAll(text[1:], "\n", "; ") + "."
}

func (c *Console) stop(w http.ResponseWriter, r *http.Request, who access.Client) {
	c.halt(w, r, who, c.Limits.Stop, "stopped")
}

func (c *Console) resume(w http.ResponseWriter, r *http.Request, who access.Client) {
	c.halt(w, r, who, c.Limits.Resume, "resumed")
}

// halt stops or resumes a source. It asks for no revision: an emergency waits for nothing.
func (c *Console) halt(w http.ResponseWriter, r *http.Request, who access.Client, act func(context.Context, settings.Order) (settings.State, error), code string) {
	o, err := c.orderFor(r, who)
	if !c.known(o.Source) {
		c.refuse(w, r, http.StatusNotFound, "There is no such source.")
		return
	}
	if err != nil {
		c.showSettings(w, r, http.StatusBadRequest, o.Source, sentence(err))
		return
	}
	ctx, cancel := bounded(r)
	defer cancel()
	if _, err := act(ctx, o); err != nil {
		c.changeFailed(w, r, o.Source, err)
		return
	}
	done(w, r, root+"/settings", code)
}
