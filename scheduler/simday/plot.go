package main

import (
	"bytes"
	"fmt"
	"math"
)

var colours = []string{"#888888", "#d08020", "#1060c0"}

const (
	plotWidth, panelHeight = 760.0, 240.0
	left, top              = 60.0, 40.0
)

// plotSVG returns two charts as SVG: the calls a second in each minute of the day, and the
// percentage of the reads in each hour that returned outdated content.
func plotSVG(all []*result) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" font-family="sans-serif" font-size="12">`+"\n", left+plotWidth+30, 2*(panelHeight+top)+60)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
	for i, r := range all {
		x := left + 20 + float64(i)*160
		fmt.Fprintf(&b, `<path d="M%g 14h24" stroke="%s" stroke-width="3"/><text x="%g" y="18">%s</text>`+"\n", x, colours[i], x+30, r.name)
	}
	panel(&b, top, "prefetch calls a second by minute, for 18 million entities", 300, "", all, func(r *result) []float64 {
		var v []float64
		for _, calls := range r.minutes {
			v = append(v, calls/60*fullEntities/float64(r.n))
		}
		return v
	})
	most := 0.0
	share := func(r *result) []float64 {
		var v []float64
		for h := range 24 {
			v = append(v, 100*r.hourOutdated[h]/math.Max(r.hourReads[h], 1))
			most = math.Max(most, v[h])
		}
		return v
	}
	for _, r := range all {
		share(r)
	}
	panel(&b, 2*top+panelHeight+20, "reads that returned outdated content, by hour", math.Ceil(most/5)*5, " %", all, share)
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

func panel(b *bytes.Buffer, y float64, title string, most float64, unit string, all []*result, of func(*result) []float64) {
	fmt.Fprintf(b, `<text x="%g" y="%g" font-weight="bold">%s</text>`+"\n", left, y+2, title)
	y += 12
	for i := range 6 {
		at := y + panelHeight*(1-float64(i)/5)
		fmt.Fprintf(b, `<path d="M%g %gh%g" stroke="#dddddd"/><text x="%g" y="%g" text-anchor="end">%.3g%s</text>`+"\n", left, at, plotWidth, left-6, at+4, most*float64(i)/5, unit)
	}
	for hour := 0; hour <= 24; hour += 3 {
		fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle">%02d:00</text>`+"\n", left+plotWidth*float64(hour)/24, y+panelHeight+18, hour)
	}
	for i, r := range all {
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5" stroke-opacity="0.8" points="`, colours[i])
		v := of(r)
		for j := range v {
			x := left + plotWidth*(float64(j)+0.5)/float64(len(v))
			fmt.Fprintf(b, "%.1f,%.1f ", x, y+panelHeight*(1-math.Min(v[j]/most, 1)))
		}
		fmt.Fprintln(b, `"/>`)
	}
}
