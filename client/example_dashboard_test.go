package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/freshet/freshet/client"
)

// In a real terminal, clearScreen is "\x1b[H\x1b[2J": it clears the screen, so that each frame
// replaces the last one. It is empty here, because the output of the example is compared as text.
const clearScreen = ""

// document is the part of a snapshot that the dashboard shows.
type document struct{ Basic struct{ Level int } }

// cell is the text that the dashboard shows for one character of the game.
type cell struct{ name, text string }

// follow sends the cell of a character when it starts and after each event of the character, until
// ctx ends.
func follow(ctx context.Context, c *client.Client, name string, cells chan<- cell) {
	entity := client.Entity{Source: "nexon", Facet: "character", Key: name}
	for event, err := range c.Watch(ctx, entity) { // if the connection is lost, Watch connects again by itself
		var result client.Result[document]
		if err == nil {
			result, err = client.GetAs[document](ctx, c, entity) // if the content is unchanged, this conditional read transfers no content
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
	service := startImitation(names...) // a real program uses the URL of its query service here
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
	for frames := 0; frames < 2; { // two frames are enough for the example; a real program draws until it is stopped
		latest := <-cells
		texts[latest.name] = latest.text
		if len(texts) < len(names) {
			continue // skip: the first frame is drawn only when the text of every character has arrived
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
