package main

// small is the name of a facet with small documents.
const small = "small"

var onlySmall = map[string]string{small: "basic"}
