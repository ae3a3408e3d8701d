package main

// small is a facet with small documents.
const small = "small"

var onlySmall = map[string]string{small: "basic"}
