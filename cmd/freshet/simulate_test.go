package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"
)

func TestSimulate_ServesContractAtSpeed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		c := run(ctx, []string{"simulate", "--listen", "127.0.0.1:0", "--contract", "ietf", "--speed", "30", "--latency", "0"}, nil, io.Discard, writer)
		_ = writer.Close()
		code <- c
	}()
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatalf("ended with %v after the output %q", err, line)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	base := regexp.MustCompile(`http://[0-9.:]+`).FindString(line)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(base + "/thing")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got := resp.Header.Get("RateLimit-Policy"); got != `"burst";q=100;w=2,"daily";q=10000;w=2880` {
		t.Errorf("policy: got %s, want %s", got, `"burst";q=100;w=2,"daily";q=10000;w=2880`)
	}
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit code: got %d, want 0", c)
	}
}
