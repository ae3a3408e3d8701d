// Package browser tests the query API and the console in a headless Chromium. The tests start
// `freshet dev`, or the test binary of package console, which serves consoles with fake data with
// its flag -serve. They need no real service.
//
//	cd e2e && go test ./browser                            # skips every test that needs Chromium if there is none
//	cd e2e && FRESHET_TEST_REQUIRE=1 go test ./browser     # fails instead
//	cd e2e && go test ./browser -run TestPages_AreAccessible -screenshots /tmp/screenshots
package browser
