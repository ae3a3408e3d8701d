package shared

import (
	"testing"

	"github.com/freshet/freshet/store"
)

func TestScanKey_AcceptsMissingHash(t *testing.T) {
	for _, hash := range [][]byte{nil, []byte("short"), make([]byte, 33)} {
		k := store.APIKey{Hash: [32]byte{1}}
		err := scanKey(&k, func(into ...any) error {
			*into[0].(*string), *into[1].(*[]byte), *into[3].(*string) = "id", hash, "read admin"
			return nil
		})
		if err != nil || k.ID != "id" || k.Hash != [32]byte{} || len(k.Scopes) != 2 {
			t.Errorf("%q: %+v, %v", hash, k, err)
		}
	}
}
