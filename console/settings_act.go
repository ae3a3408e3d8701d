package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"

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
			*to = settings.Reset[int]()
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
		of.HighReserve = settings.Reset[limiter.Reserve]()
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
func (c *Console) orderFor(r *http.Request, who access.Client) (o settings.ChangeRequest, err error) {
	o = settings.ChangeRequest{Source: r.PathValue("source"), Actor: who.Name, Note: strings.TrimSpace(r.PostFormValue("note"))}
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
		err = &settings.ConflictError{Source: o.Source, Expected: *o.Revision, Actual: state.Revision}
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
	case as[*settings.UnknownSourceError](err):
		status = http.StatusNotFound
	case as[*settings.InvalidError](err):
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

// halt stops or resumes a source. An emergency waits for nothing: it asks for no revision, and
// a note that can't be kept as it is is mended, not refused.
func (c *Console) halt(w http.ResponseWriter, r *http.Request, who access.Client, act func(context.Context, settings.ChangeRequest) (settings.State, error), code string) {
	o := settings.ChangeRequest{Source: r.PathValue("source"), Actor: who.Name, Note: mended(r.PostFormValue("note"))}
	if !c.known(o.Source) {
		c.refuse(w, r, http.StatusNotFound, "There is no such source.")
		return
	}
	ctx, cancel := bounded(r)
	defer cancel()
	if _, err := act(ctx, o); err != nil {
		c.haltFailed(w, r, o.Source, code, err)
		return
	}
	done(w, r, root+"/settings", code)
}

// haltFailed says that a source goes on as it did, and what to do then.
func (c *Console) haltFailed(w http.ResponseWriter, r *http.Request, source, code string, err error) {
	known := as[*settings.UnknownSourceError](err) || as[*settings.InvalidError](err) || as[*settings.ConflictError](err) || errors.Is(err, settings.ErrBusy)
	if known {
		c.changeFailed(w, r, source, err)
		return
	}
	what := source + " was not " + code + ": its settings can't be written."
	if code == "stopped" {
		what += " It is called on. If trying again does not help, end the workers of " + source + ": nothing is lost by that."
	}
	c.trouble(w, r, what, err)
}

// mended is a note as the audit keeps it: one line, of text, and not too long.
func mended(note string) string {
	note = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(note, "\uFFFD"))
	note = strings.Join(strings.Fields(note), " ")
	if all := []rune(note); len(all) > noteMost {
		note = string(all[:noteMost])
	}
	return note
}
