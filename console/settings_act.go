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
	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

// setPolicyField sets one field of a patch of a policy. If the text is empty or equals the
// configured value, the patch resets the field to the configuration.
func setPolicyField(of *settings.PolicyPatch, field int, text string, f policyField) error {
	back := text == "" || text == f.Configured
	number := func(to *settings.Member[int]) error {
		if back {
			*to = settings.Reset[int]()
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("%s: %q must be a whole number", f.Label, displayText(text, 40))
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

// readOrder returns a change of settings with the source, note and revision of the submitted form,
// and with the client as its actor. The caller adds the patch, which contains the new values.
func (c *settingsPages) readOrder(r *http.Request, client access.Client) (o settings.ChangeRequest, err error) {
	o = settings.ChangeRequest{Source: r.PathValue("source"), Actor: client.Name, Note: strings.TrimSpace(r.PostFormValue("note"))}
	if err := admin.CheckNote(o.Note); err != nil {
		return o, err
	}
	if text := r.PostFormValue("revision"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return o, errors.New("the revision is not a number; reload the page")
		}
		o.Revision = &n
	}
	return o, nil
}

// changeSettings changes the settings of a source. It rejects the change if the settings have a
// newer revision than the submitted form.
func (c *settingsPages) changeSettings(w http.ResponseWriter, r *http.Request, client access.Client) {
	o, err := c.readOrder(r, client)
	if !c.hasSource(o.Source) {
		c.reject(w, r, http.StatusNotFound, "There is no such source.")
		return
	}
	if err == nil && o.Revision == nil {
		err = errors.New("the revision is missing; reload the page")
	}
	if err != nil {
		c.showSettings(w, r, http.StatusBadRequest, o.Source, err)
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	state, err := c.Limits.Get(ctx, o.Source)
	if err == nil && *o.Revision != state.Revision {
		err = &settings.ConflictError{Source: o.Source, Expected: *o.Revision, Actual: state.Revision}
	}
	if err != nil {
		c.settingsFailed(w, r, o.Source, err)
		return
	}
	patch, changed, err := readPatch(r, state)
	switch {
	case err != nil:
		c.showSettings(w, r, http.StatusBadRequest, o.Source, err)
	case !changed:
		redirectWithNotice(w, r, root+"/settings", "unchanged")
	default:
		if _, err := c.Limits.Change(ctx, o, patch); err != nil {
			c.settingsFailed(w, r, o.Source, err)
			return
		}
		redirectWithNotice(w, r, root+"/settings", "changed")
	}
}

// settingsFailed responds to a change of settings that has failed.
func (c *settingsPages) settingsFailed(w http.ResponseWriter, r *http.Request, source string, err error) {
	var status int
	switch {
	case isError[*settings.UnknownSourceError](err):
		status = http.StatusNotFound
	case isError[*settings.InvalidError](err):
		status = http.StatusUnprocessableEntity
	case isError[*settings.ConflictError](err):
		status = http.StatusPreconditionFailed
	case errors.Is(err, settings.ErrBusy):
		status = http.StatusConflict
	default:
		c.unavailable(w, r, "The settings can't be changed.", err)
		return
	}
	c.showSettings(w, r, status, source, err)
}

func isError[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// errorSentence formats an error as a sentence: with a capital at the start and a full stop.
func errorSentence(err error) string {
	text := displayText(err.Error(), maxErrorShown)
	return strings.ToUpper(text[:1]) + strings.ReplaceAll(text[1:], "\n", "; ") + "."
}

func (c *settingsPages) stop(w http.ResponseWriter, r *http.Request, client access.Client) {
	c.stopOrResume(w, r, client, c.Limits.Stop, "stopped")
}

func (c *settingsPages) resume(w http.ResponseWriter, r *http.Request, client access.Client) {
	c.stopOrResume(w, r, client, c.Limits.Resume, "resumed")
}

// stopOrResume starts or ends the emergency stop of a source. An emergency must not wait. So the
// form needs no revision of the settings, and an invalid note is corrected instead of rejected.
func (c *settingsPages) stopOrResume(w http.ResponseWriter, r *http.Request, client access.Client, act func(context.Context, settings.ChangeRequest) (settings.State, error), code string) {
	o := settings.ChangeRequest{Source: r.PathValue("source"), Actor: client.Name, Note: cleanNote(r.PostFormValue("note"))}
	if !c.hasSource(o.Source) {
		c.reject(w, r, http.StatusNotFound, "There is no such source.")
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	if _, err := act(ctx, o); err != nil {
		c.stopOrResumeFailed(w, r, o.Source, code, err)
		return
	}
	redirectWithNotice(w, r, root+"/settings", code)
}

// stopOrResumeFailed responds to a stop or resume that has failed.
func (c *settingsPages) stopOrResumeFailed(w http.ResponseWriter, r *http.Request, source, code string, err error) {
	known := isError[*settings.UnknownSourceError](err) || isError[*settings.InvalidError](err) || isError[*settings.ConflictError](err) || errors.Is(err, settings.ErrBusy)
	if known {
		c.settingsFailed(w, r, source, err)
		return
	}
	what := source + " was not " + code + ": its settings can't be written."
	if code == "stopped" {
		what += " Calls continue. If a retry does not help, stop the workers of " + source + ": no request is lost."
	}
	c.unavailable(w, r, what, err)
}

// cleanNote makes a note valid: one line of valid UTF-8 with at most admin.MaxNoteLength characters.
func cleanNote(note string) string {
	note = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(note, "\uFFFD"))
	note = strings.Join(strings.Fields(note), " ")
	if all := []rune(note); len(all) > admin.MaxNoteLength {
		note = string(all[:admin.MaxNoteLength])
	}
	return note
}
