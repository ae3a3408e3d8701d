package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/freshet/freshet/client"
)

// clearScreen is "\x1b[H\x1b[2J" in a terminal, so that each frame replaces the last one.
const clearScreen = ""

// document is the part of a snapshot that the dashboard shows.
type document struct{ Basic struct{ Level int } }

// cell is the text for one character.
type cell struct{ name, text string }

// follow sends the cell of a character at the start and after each of its events, until ctx ends.
func follow(ctx context.Context, c *client.Client, name string, cells chan<- cell) {
	entity := client.Entity{Source: "nexon", Facet: "character", Key: name}
	for event, err := range c.Watch(ctx, entity) { // reconnects itself
		var result client.Result[document]
		if err == nil {
			result, err = client.GetAs[document](ctx, c, entity) // costs little if the content is the same
		}
		text := fmt.Sprintf("level %d %s", result.Snapshot.Basic.Level, event.Freshness)
		if err != nil {
			text = err.Error()
		}
		select {
		case cells <- cell{name, text}:
		case <-ctx.Done():
			return
		}
	}
}

// draw prints a frame with four characters in each line.
func draw(names []string, texts map[string]string) {
	fmt.Print(clearScreen)
	for i, name := range names {
		fmt.Printf("%s %s%s", name, texts[name], []string{" | ", " | ", " | ", "\n"}[i%4])
	}
	fmt.Println()
}

// A dashboard of 20 characters shows each change of a character at once.
func Example_dashboard() {
	var names []string
	for n := range 20 {
		names = append(names, fmt.Sprintf("hero-%02d", n+1))
	}
	service := startImitation(names...) // a program uses the URL of its query service
	defer service.Close()

	c, err := client.New(service.URL, client.Options{Token: client.Token{Value: "an API key"}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cells, texts := make(chan cell), map[string]string{}
	for _, name := range names {
		go follow(ctx, c, name, cells)
	}
	for frames := 0; frames < 2; { // a program draws until it is stopped
		latest := <-cells
		texts[latest.name] = latest.text
		if len(texts) < len(names) {
			continue // the first frame has all characters
		}
		draw(names, texts)
		if frames++; frames == 1 {
			service.LevelUp("hero-07")
		}
	}
	// Output:
	// hero-01 level 1 FRESH | hero-02 level 1 FRESH | hero-03 level 1 FRESH | hero-04 level 1 FRESH
	// hero-05 level 1 FRESH | hero-06 level 1 FRESH | hero-07 level 1 FRESH | hero-08 level 1 FRESH
	// hero-09 level 1 FRESH | hero-10 level 1 FRESH | hero-11 level 1 FRESH | hero-12 level 1 FRESH
	// hero-13 level 1 FRESH | hero-14 level 1 FRESH | hero-15 level 1 FRESH | hero-16 level 1 FRESH
	// hero-17 level 1 FRESH | hero-18 level 1 FRESH | hero-19 level 1 FRESH | hero-20 level 1 FRESH
	//
	// hero-01 level 1 FRESH | hero-02 level 1 FRESH | hero-03 level 1 FRESH | hero-04 level 1 FRESH
	// hero-05 level 1 FRESH | hero-06 level 1 FRESH | hero-07 level 2 FRESH | hero-08 level 1 FRESH
	// hero-09 level 1 FRESH | hero-10 level 1 FRESH | hero-11 level 1 FRESH | hero-12 level 1 FRESH
	// hero-13 level 1 FRESH | hero-14 level 1 FRESH | hero-15 level 1 FRESH | hero-16 level 1 FRESH
	// hero-17 level 1 FRESH | hero-18 level 1 FRESH | hero-19 level 1 FRESH | hero-20 level 1 FRESH
}
