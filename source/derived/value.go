package derived

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// maxDigits and maxExponent limit a number in an item, and maxTextBytes limits a text. So they limit
// the memory for a result. `maxStoredDigits` is the maximum number of digits of a number in a stored
// result. Such a number has no exponent.
const (
	maxDigits, maxExponent = 40, 40
	maxStoredDigits        = 4 * maxDigits
	maxTextBytes           = 256
)

// decimal is the exact decimal number coefficient / 10^scale. The zero value is 0. The coefficient is
// in small, or in big if it does not fit into small.
type decimal struct {
	small int64
	big   *big.Int
	scale int
}

var (
	errNoNumber   = errors.New("is not a number")
	errLongNumber = fmt.Errorf("has more than %d digits", maxDigits)
)

// parseDecimal parses a JSON number with at most digitLimit digits.
func parseDecimal(text string, digitLimit int) (decimal, error) {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		var err error
		mantissa = text[:i]
		if exponent, err = strconv.Atoi(text[i+1:]); err != nil || exponent > maxExponent || exponent < -maxExponent {
			return decimal{}, errLongNumber
		}
	}
	whole, fraction, pointed := strings.Cut(mantissa, ".")
	digits := strings.TrimPrefix(whole, "-")
	if digits == "" || (pointed && fraction == "") || strings.Trim(digits+fraction, "0123456789") != "" {
		return decimal{}, errNoNumber
	}
	if len(digits)+len(fraction) > digitLimit {
		return decimal{}, errLongNumber
	}
	d := decimal{scale: len(fraction) - exponent}
	if n, err := strconv.ParseInt(whole+fraction, 10, 64); err == nil {
		d.small = n
	} else {
		d.big, _ = new(big.Int).SetString(whole+fraction, 10)
	}
	if d.scale < 0 {
		return decimal{big: d.coefficient(0)}, nil
	}
	return d, nil
}

// coefficient returns the coefficient of the same number with a greater or equal scale.
func (d decimal) coefficient(scale int) *big.Int {
	n := d.big
	if n == nil {
		n = big.NewInt(d.small)
	}
	if scale == d.scale {
		return n
	}
	return new(big.Int).Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale-d.scale)), nil))
}

func (d decimal) add(o decimal) decimal {
	if d.big == nil && o.big == nil && d.scale == o.scale {
		if sum := d.small + o.small; (sum > d.small) == (o.small > 0) { // the sum has not overflowed
			return decimal{small: sum, scale: d.scale}
		}
	}
	scale := max(d.scale, o.scale)
	return decimal{big: new(big.Int).Add(d.coefficient(scale), o.coefficient(scale)), scale: scale}
}

func (d decimal) compare(o decimal) int {
	if d.big == nil && o.big == nil && d.scale == o.scale {
		return cmp.Compare(d.small, o.small)
	}
	scale := max(d.scale, o.scale)
	return d.coefficient(scale).Cmp(o.coefficient(scale))
}

// String returns the number without an exponent and without zeros at the end of its fraction. Equal
// numbers have equal texts.
func (d decimal) String() string {
	text := d.coefficient(d.scale).String()
	if d.scale == 0 {
		return text
	}
	digits := strings.TrimPrefix(text, "-")
	sign := text[:len(text)-len(digits)]
	if missing := d.scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - d.scale
	fraction := strings.TrimRight(digits[point:], "0")
	if fraction == "" {
		return sign + digits[:point]
	}
	return sign + digits[:point] + "." + fraction
}

// kind is the kind of a value. If two values have different kinds, the value of the lower kind is the
// smaller one.
type kind uint8

const (
	none kind = iota
	number
	moment
	text
)

// value is a measured value of an item.
type value struct {
	kind   kind
	number decimal
	at     time.Time
	text   string
}

// valueOf returns the value of a JSON text, number, true or false. true and false become texts. A
// number can have at most digitLimit digits.
func valueOf(r gjson.Result, digitLimit int) (value, error) {
	switch r.Type {
	case gjson.Null:
		return value{}, nil
	case gjson.Number:
		d, err := parseDecimal(r.Raw, digitLimit)
		return value{kind: number, number: d}, err
	case gjson.True, gjson.False:
		return value{kind: text, text: r.Raw}, nil
	case gjson.String:
		if len(r.Str) > maxTextBytes {
			return value{}, fmt.Errorf("is a text of %d bytes; at most %d are allowed", len(r.Str), maxTextBytes)
		}
		if d, err := parseDecimal(r.Str, digitLimit); err == nil {
			return value{kind: number, number: d}, nil
		}
		if at, err := time.Parse(time.RFC3339Nano, r.Str); err == nil {
			return value{kind: moment, at: at.UTC()}, nil
		}
		return value{kind: text, text: r.Str}, nil
	case gjson.JSON:
	}
	return value{}, errors.New("is an object or a nested list; name a member that is a number or a text")
}

func (v value) compare(o value) int {
	if v.kind != o.kind {
		return cmp.Compare(v.kind, o.kind)
	}
	switch v.kind {
	case number:
		return v.number.compare(o.number)
	case moment:
		return v.at.Compare(o.at)
	case text:
		return strings.Compare(v.text, o.text)
	case none:
	}
	return 0
}

// String returns the value as text. Two values of the same kind are equal if their texts are equal.
func (v value) String() string {
	switch v.kind {
	case number:
		return v.number.String()
	case moment:
		return v.at.Format(time.RFC3339Nano)
	case text:
		return v.text
	case none:
	}
	return ""
}

// appendJSON appends the value as JSON: a number, a text, or null.
func (v value) appendJSON(b []byte) []byte {
	switch v.kind {
	case none:
		return append(b, "null"...)
	case number:
		return append(b, v.String()...)
	case moment, text:
	}
	quoted, _ := json.Marshal(v.String()) // no error is possible: the value is a text
	return append(b, quoted...)
}

// timeOf returns the time in a JSON value. `ok` is false if the value is no time.
func timeOf(r gjson.Result) (time.Time, bool) {
	switch r.Type { //nolint:exhaustive // other values are no times
	case gjson.String:
		at, err := time.Parse(time.RFC3339Nano, r.Str)
		return at, err == nil
	case gjson.Number:
		const maxSeconds = 253402300799 // the last second of the year 9999, in Unix seconds
		if s := r.Int(); s >= 0 && s <= maxSeconds {
			return time.Unix(s, 0), true
		}
	}
	return time.Time{}, false
}
