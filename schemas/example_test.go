package schemas_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
)

func ExampleUpdateRequest_Encode() {
	r := schemas.UpdateRequest{
		EventID: "0198c1a2-7b3c-7d4e-8f50-123456789abc",
		Entity:  schemas.Entity{Source: "nexon", Facet: "character", Key: "42"},
		Lane:    schemas.High, Reason: schemas.Stale, Version: 1700000000000,
		RequestedAt: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC),
	}
	value, err := r.Encode()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(schemas.RequestTopic(r.Source, r.Lane), string(r.RecordKey()))
	decoded, err := schemas.DecodeUpdateRequest(value)
	fmt.Println(decoded.Entity, decoded.Lane, decoded.Reason.Relaxed(), err)
	// Output:
	// nexon.update-priority-high character/42
	// nexon/character/42 HIGH true <nil>
}

func ExampleCheckName() {
	fmt.Println(schemas.CheckName("facet", "item-equipment"))
	fmt.Println(schemas.CheckName("facet", "Item"))
	// Output:
	// <nil>
	// the facet's name "Item" may contain only lower-case letters, digits and inner hyphens
}

func ExampleDeadLetter_Fingerprint() {
	a := schemas.DeadLetter{Reason: schemas.Upstream4xx, Status: 400, Error: "GET /character/1042: status 400"}
	b := schemas.DeadLetter{Reason: schemas.Upstream4xx, Status: 400, Error: "GET /character/2077: status 400"}
	fmt.Println(a.Fingerprint(schemas.Entity{Key: "1042"}) == b.Fingerprint(schemas.Entity{Key: "2077"}))
	// Output: true
}

func ExampleSettled() {
	s := schemas.Settled{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "42"}, Number: 1700000000123}
	fmt.Println(schemas.SettledChannel(s.Entity.Source), s.Encode())
	back, err := schemas.DecodeSettled("settled:nexon", "1700000000123 character/42")
	fmt.Println(back == s, err)
	// Output:
	// settled:nexon 1700000000123 character/42
	// true <nil>
}
