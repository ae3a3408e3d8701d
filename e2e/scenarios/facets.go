package main

// small is a facet whose documents are small: what is judged is not how fast they are
// read.
const small = "small"

var onlySmall = map[string]string{small: "basic"}
