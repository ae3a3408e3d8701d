package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

func deadLetterPath(id deadletters.ID, source string) string {
	return fmt.Sprintf("%s/dlq/%s/%d/%d", root, url.PathEscape(source), id.Partition, id.Offset)
}

// deadLetterPage is the data of the page of one dead letter.
type deadLetterPage struct {
	schemas.DeadLetter
	ID         deadletters.ID
	Source     string
	Value      string
	Sample     string
	Request    *schemas.UpdateRequest
	HeaderRows [][2]string
	Replays    int
	Handled    string // how it was handled: replayed or purged; empty: it is open
	Hidden     bool   // true if the content is not shown, because only administrators may see it
}

func (c *dlqPages) deadLetter(w http.ResponseWriter, r *http.Request, client access.Client) {
	source := r.PathValue("source")
	partition, offset, err := dlq.ParseID(r.PathValue("partition") + ":" + r.PathValue("offset"))
	if err != nil || !c.hasSource(source) {
		c.reject(w, r, http.StatusNotFound, "Dead letter not found.")
		return
	}
	ctx, cancel := requestContext(r)
	defer cancel()
	id := deadletters.ID{Topic: schemas.DeadLetterTopic(source), Partition: partition, Offset: offset}
	l, err := c.DLQ.Show(ctx, id)
	request, undecodable := schemas.DecodeUpdateRequest(l.Value)
	if err == nil && undecodable == nil {
		err = c.canSeeDeadLetter(ctx, client, id, request.Entity)
	}
	switch {
	case errors.Is(err, dlq.ErrGone):
		c.reject(w, r, http.StatusNotFound, "Dead letter not found: it never existed, or Kafka has deleted it after its retention time.")
		return
	case errors.Is(err, dlq.ErrUnreadable):
		c.reject(w, r, http.StatusUnprocessableEntity, "The record is not a valid dead letter: "+displayText(err.Error(), maxErrorShown))
		return
	case err != nil:
		c.unavailable(w, r, fmt.Sprintf("The dead letter %s/%d:%d can't be read.", source, partition, offset), err)
		return
	}
	p := deadLetterPage{DeadLetter: l, ID: id, Source: source, Value: formatContent(l.Value, ""), Sample: formatContent(l.Sample, ""), Replays: l.Replay().Count}
	if undecodable == nil {
		p.Request = &request
	}
	if indexed, err := c.DLQ.List(ctx, deadletters.Filter{Source: source, Partition: &partition, Offset: &offset}, deadletters.DeadLetter{}, 1); err == nil && len(indexed) > 0 {
		p.Handled = indexed[0].Handled
	}
	if !client.May(access.Admin) {
		p.Hidden, p.Value, p.Sample = true, "", ""
	}
	for _, h := range l.Headers {
		p.HeaderRows = append(p.HeaderRows, [2]string{displayText(h.Key, 80), displayText(string(h.Value), maxErrorShown)})
	}
	c.render(w, r, http.StatusOK, "dead-letter", "Dead letter", p)
}

// canSeeDeadLetter returns dlq.ErrGone if the client may not see the entity of a dead letter. It
// checks the visibility label that was stored with the dead letter, and the entity's label by the
// current configuration.
func (c *dlqPages) canSeeDeadLetter(ctx context.Context, client access.Client, id deadletters.ID, e schemas.Entity) error {
	if client.May(access.Admin) {
		return nil
	}
	indexed, err := c.DLQ.List(ctx, deadletters.Filter{Source: e.Source, Partition: &id.Partition, Offset: &id.Offset}, deadletters.DeadLetter{}, 1)
	if err != nil {
		return err
	}
	visibility := ""
	if len(indexed) > 0 {
		visibility = indexed[0].Visibility
	}
	if !c.Entities.Sees(client, e, visibility) {
		return dlq.ErrGone
	}
	return nil
}

// jsonBody returns the content of the page: the record, the response and the whole request are only for
// administrators.
func (p deadLetterPage) jsonBody() any {
	body := map[string]any{
		"source": p.Source, "partition": p.ID.Partition, "offset": p.ID.Offset, "topic": p.ID.Topic, "reason": p.Reason, "error": p.Error, "status": p.Status,
		"attempts": p.Attempts, "replays": p.Replays, "at": p.Time, "originalTopic": p.Topic, "originalPartition": p.Partition, "originalOffset": p.Offset,
		"worker": p.Worker, "group": p.Group, "headers": p.HeaderRows, "value": p.Value, "sample": p.Sample, "hidden": p.Hidden,
	}
	if p.Request != nil {
		body["entity"], body["requestReason"], body["lane"], body["correlationId"] = p.Request.Entity.String(), p.Request.Reason, p.Request.Lane, p.Request.CorrelationID
	}
	return body
}
