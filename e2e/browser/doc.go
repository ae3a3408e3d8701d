// Package browser tests the query API and the console in a headless Chromium. The tests start
// `freshet dev`, or the test binary of package console with the flag -serve: this binary then serves
// consoles with fake data. The tests need no real service.
//
//	cd e2e && go test ./browser                            # skips the tests if Chromium is not installed
//	cd e2e && FRESHET_TEST_REQUIRE=1 go test ./browser     # fails if Chromium is not installed
//	cd e2e && go test ./browser -run TestPages_AreAccessible -screenshots /tmp/screenshots
package browser
