package trial_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/trial"
)

func rawItem(f *source.Facet) {
	f.Raw = &source.Raw{MediaType: "application/xml", WellFormed: "xml"}
}

func TestRun_ShowsRawContent(t *testing.T) {
	n := 0
	report, err := newRig(item, rawItem).run(t, trial.Options{Twice: true}, func(w http.ResponseWriter, _ *http.Request) {
		n++
		_, _ = fmt.Fprintf(w, "<item n=\"%d\"/>", n)
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(report)
	if err != nil || string(report.Content) != `"\u003citem n=\"1\"/\u003e"` || report.Bytes != 13 {
		t.Errorf("got content %s of %d bytes, %v, report %s, want the document of 13 bytes as a string", report.Content, report.Bytes, err, text)
	}
	if len(report.Changed.Hashed) != 1 || strings.Contains(strings.Join(report.Advice, "\n"), "ignore") {
		t.Errorf("got %+v, advice %q, want one changed document and no advice about ignore", report.Changed, report.Advice)
	}
}

func TestRun_AdvisesOnRawContent(t *testing.T) {
	report, err := newRig(item, rawItem).run(t, trial.Options{}, respond(200, "<item", "Content-Type", "text/xml"))
	if err != nil || report.Class != string(source.BadContent) || !strings.Contains(strings.Join(report.Advice, "\n"), "setting raw") {
		t.Errorf("got %s, advice %q, %v, want bad-content and advice about the setting raw", report.Class, report.Advice, err)
	}
}
