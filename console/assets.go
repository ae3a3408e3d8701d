package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"

	"github.com/freshet/freshet/client/js"
)

//go:embed assets templates
var files embed.FS

// assets are the static files by file name, and the browser module freshet.js. The URL of a file
// contains a part of the file's hash. If the file changes, its URL changes, so browsers may cache the
// file forever.
var assets = readAssets()

type asset struct {
	body []byte
	hash string
	kind string
}

func readAssets() map[string]asset {
	all := map[string]asset{"freshet.js": newAsset("freshet.js", js.Module)}
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		all[name[len("assets/"):]] = newAsset(name, body)
		return nil
	})
	if err != nil {
		panic(err) // embedded files are always readable
	}
	return all
}

func newAsset(name string, body []byte) asset {
	kind := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}[path.Ext(name)]
	if kind == "" {
		kind = mime.TypeByExtension(".txt")
	}
	sum := sha256.Sum256(body)
	return asset{body, hex.EncodeToString(sum[:8]), kind}
}

// assetURL returns the URL of the asset with this file name.
func assetURL(name string) string { return root + "/assets/" + name + "?" + assets[name].hash }

func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	a, known := assets[r.PathValue("name")]
	if !known {
		c.reject(w, r, http.StatusNotFound, "File not found.")
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	if r.URL.RawQuery == a.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(a.body) // an error means that the client has disconnected
}
