package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DocumentKeys are the keys of 39 layouts in 12 folders. A layout is an XML document that describes a
// page of a court site.
var DocumentKeys = documentKeys()

func documentKeys() (all []string) {
	for n := range strings.FieldsSeq("F10 F11 F20 F30 F32 F40 F50 F60 F61 F62 F63 F64 F65 F66 F67 F68 F69 F6A F6B F6C F70 F71 F80 F90 FA0 FF0 FG0 FH0") {
		all = append(all, "ssgo003/SSGO003"+n+".xml")
	}
	for folder := range strings.FieldsSeq("101 102 105 106 107 108 10a 10c 10g 10i 10j") {
		all = append(all, "ssgo"+folder+"/SSGO"+strings.ToUpper(folder)+"F01.xml")
	}
	return all
}

// Layout returns an XML document that the facet "layout" of the preset court accepts.
func Layout(name string) string {
	return fmt.Sprintf("<?xml version=\"1.0\"?>\n<w2:layout xmlns:w2=\"u\" name=%q>%s</w2:layout>\n", name, strings.Repeat("<w2:row><w2:column width=\"120\"/></w2:row>", 100))
}

// WriteLayout writes a layout as a file below a directory. It replaces an existing file with a rename.
func WriteLayout(dir, key, name string) error {
	path := filepath.Join(dir, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	temporary := filepath.Join(dir, ".new")
	if err := os.WriteFile(temporary, []byte(Layout(name)), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// PrepareCourt starts `freshet simulate --contract court` as the upstream of one source with the preset
// court. It creates the tables and topics. layout has further settings of the facet layout, as a YAML
// flow mapping without braces. It returns the process of the upstream.
func (s *Site) PrepareCourt(ctx context.Context, latency, layout string) (*Process, error) {
	p, err := s.Start(ctx, "court", upstreamReady, nil, "simulate", "--listen", "127.0.0.1:0", "--contract", "court", "--latency", latency)
	if err != nil {
		return nil, err
	}
	s.Upstream, s.Latency = p.Match, latency
	// No policy has a window of a minute, so the quiet period after the start lasts only one lease. The
	// upstream refuses a call that arrives less than 600 ms after the previous one. The configured
	// minimum interval of 900 ms is longer by 300 ms, because a busy machine can delay one call more
	// than the next one.
	s.Sources = map[string]string{s.Source: fmt.Sprintf(`preset: court
baseURL: %s
timeout: 2s
quota: {policies: [{name: concurrent, limit: 3, window: in-flight, lease: 7s}, {name: interval, minInterval: {min: 900ms, max: 1200ms}}]}
facets: {layout: {%s}}
`, s.Upstream, layout)}
	return p, s.CreateTables(ctx)
}

// CourtStats are counters of the contract court.
type CourtStats struct {
	Arrivals    int            `json:"arrivals"`
	Refused     int            `json:"refused"`
	Refusals    map[string]int `json:"refusals"`
	MaxInFlight int            `json:"maxInFlight"`
}

// CourtStats returns the counters of the contract court.
func (s *Site) CourtStats(ctx context.Context) (stats CourtStats, err error) {
	text, err := s.get(ctx, "/_stats")
	if err != nil {
		return stats, err
	}
	defer func() { _ = text.Close() }()
	return stats, json.NewDecoder(text).Decode(&stats)
}
