package source

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a number of bytes. In the configuration file it is a whole number with an optional
// unit, as in 128MiB.
type Bytes int64

var byteUnits = []struct {
	name string
	size Bytes
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}

// UnmarshalText parses a size such as 4096, 64KiB or 1GB.
func (b *Bytes) UnmarshalText(text []byte) error {
	number, unit := string(text), Bytes(1)
	for _, u := range byteUnits {
		if n, found := strings.CutSuffix(number, u.name); found {
			number, unit = n, u.size
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/int64(unit) {
		return fmt.Errorf("%q is not a size; write a whole number of bytes, with or without a unit, as in 128MiB", text)
	}
	*b = Bytes(n) * unit
	return nil
}

// MarshalText formats the size with the largest binary unit that divides it.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range byteUnits[:3] {
		if b > 0 && b%u.size == 0 {
			return fmt.Appendf(nil, "%d%s", b/u.size, u.name), nil
		}
	}
	return strconv.AppendInt(nil, int64(b), 10), nil
}
