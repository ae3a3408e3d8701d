package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
)

//go:embed assets templates
var files embed.FS

// assets are what pages load, by name; the address of each has a part of its hash, so that
// it may be kept for ever.
var assets = readAssets()

type asset struct {
	body []byte
	hash string
	kind string
}

func readAssets() map[string]asset {
	all := map[string]asset{}
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		kind := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}[path.Ext(name)]
		if kind == "" {
			kind = mime.TypeByExtension(".txt")
		}
		sum := sha256.Sum256(body)
		all[name[len("assets/"):]] = asset{body, hex.EncodeToString(sum[:8]), kind}
		return nil
	})
	if err != nil {
		panic(err) // they are in the program
	}
	return all
}

// assetURL is where a page finds an asset.
func assetURL(name string) string { return root + "/assets/" + name + "?" + assets[name].hash }

func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	a, known := assets[r.PathValue("name")]
	if !known {
		c.reject(w, r, http.StatusNotFound, "There is no such file.")
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	if r.URL.RawQuery == a.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(a.body) // who has left misses nothing
}
