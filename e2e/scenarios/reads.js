// k6 script: users of a website that reads its data through freshet. `go run ./scenarios
// reads` starts all other processes and runs this script once for each phase.
//
// The script sends these requests, with these successful responses. Any other response is a
// failure, and a request without a response is a failure too:
//
//   90 %  stored   GET of a stored key, by a Zipf distribution; every fifth with its entity
//                  tag. 200 from the cache or the store, or 304 for the tag. Never 503.
//    4 %  stale    GET of a stored key whose check is too old. The same responses as for stored.
//                  The key may be fresh again after an earlier read.
//    3 %  new      GET of a key that is not stored. 202 with Retry-After. Without Redis 503
//                  with Retry-After, because no update can be queued.
//    2 %  refresh  POST of a refresh of a stored key. 202, or 429 with Retry-After during
//                  the cool-down. Without Redis 503 with Retry-After.
//    1 %  unknown  GET of a source or a facet that does not exist. 404 as problem details.
//
// After Redis is killed, only 503 is right for the kinds new and refresh. Some requests then read
// "cold" keys, which were not read before, so that their snapshots come from the database.
//
// The latency of the kinds stored and stale is the time from the first byte of the request to the
// last byte of a response with a body. The script logs the hashes of a sample of the documents, at
// least one in a hundred. The program that started this script checks the hashes.
import http from 'k6/http';
import { check, sleep } from 'k6';
import crypto from 'k6/crypto';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';

const env = __ENV;
const api = `${env.API}/v1/${env.SOURCE}/character/`;
const stored = Number(env.STORED); // number of keys stored-0, stored-1, …
const stale = Number(env.STALE);   // number of keys stale-0, …
const cold = Number(env.COLD);     // number of keys cold-0, …
const withoutRedis = env.WITHOUT === 'redis';
// Times in ms since the start of the run: Redis is still available until the time alive, and all
// query services have noticed its loss at the time noticed. Between these times, the responses
// with Redis and the responses without Redis are both right.
const alive = Number(env.KILLED || 0) * 1000 - 1000;
const noticed = alive + 3000;
const part = Math.max(0.01, 30 / (Number(env.USERS) * Number(env.SECONDS) / 4)); // share of the bodies that are checked
// A user waits 2 to 6 seconds between two requests, so 1,000 users send 250 requests a second.
const think = () => sleep(2 + 4 * Math.random());

const kinds = ['stored', 'stale', 'new', 'refresh', 'unknown'].concat(withoutRedis ? ['cold'] : []);
const success = Object.fromEntries(kinds.map((kind) => [kind, new Rate(`success_${kind}`)]));
const took = Object.fromEntries(kinds.map((kind) => [kind, new Trend(`took_${kind}`)]));
const whole = new Trend('took_whole'); // stored keys, responses with a body
const rejected = new Counter('rejected'); // 503 for an update that could not be queued

export const options = {
  discardResponseBodies: true,
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
  systemTags: ['status', 'method', 'name'],
  scenarios: {
    users: { executor: 'constant-vus', vus: Number(env.USERS), duration: `${env.SECONDS}s`, gracefulStop: '10s' },
  },
  thresholds: Object.assign({
    checks: ['rate>0.99'],
    success_stored: ['rate>0.999'],
    success_stale: ['rate>0.999'],
    success_new: ['rate>0.99'],
    success_refresh: ['rate>0.99'],
    success_unknown: ['rate>0.99'],
    took_whole: ['p(95)<100'],
  }, withoutRedis ? { success_cold: ['rate>0.99'] } : {}),
};

// This request notifies the program that started k6 that all users are started. The program then
// causes the fault of the phase.
export function setup() {
  if (env.BEGIN) http.post(env.BEGIN);
}

export default function () {
  if (exec.vu.iterationInScenario === 0) sleep(6 * Math.random()); // users start at different times
  const p = Math.random();
  if (withoutRedis && p < 0.05 && since() > noticed) read('cold', `cold-${exec.scenario.iterationInTest % cold}`);
  else if (p < 0.90) read('stored', `stored-${popular()}`);
  else if (p < 0.94) read('stale', `stale-${exec.scenario.iterationInTest % stale}`);
  else if (p < 0.97) unread();
  else if (p < 0.99) refresh();
  else unknown();
  think();
}

// popular draws the number of a key by a Zipf distribution: the first key is drawn n times as
// often as the n-th.
function popular() {
  return Math.min(stored, Math.floor(Math.exp(Math.random() * Math.log(stored + 1)))) - 1;
}

const params = (kind, more) => Object.assign({
  headers: { 'Accept-Encoding': 'zstd, gzip' },
  tags: { name: kind },
}, more);

const since = () => Date.now() - exec.scenario.startTime;

// queueable reports whether a response to a request that queues an update has a right status. sent
// is the time of the request; ok lists the statuses of a response whose update is queued.
function queueable(res, sent, ok) {
  if (res.status === 503 && withoutRedis && sent > noticed) rejected.add(1);
  if (!withoutRedis || since() < alive) return ok.includes(res.status);
  if (sent > noticed) return res.status === 503;
  return res.status === 503 || ok.includes(res.status);
}

function judge(kind, res, ok) {
  took[kind].add(res.timings.duration);
  success[kind].add(ok);
  check(res, { [kind]: () => ok }, { name: kind });
  if (!ok && Math.random() < 0.02) console.warn(`${kind}: ${res.status} ${res.error} ${JSON.stringify(res.headers)}`);
}

const retryAfter = (res) => Number(res.headers['Retry-After']) > 0;

let seen; // the key that this user read last, and its entity tag

function read(kind, key) {
  const request = params(kind);
  if (seen && kind === 'stored' && Math.random() < 0.2) {
    key = seen.key;
    request.headers['If-None-Match'] = seen.tag;
  }
  const judged = Math.random() < part;
  if (judged) request.responseType = 'text';
  const res = http.get(api + key, request);
  const unchanged = res.status === 304 && 'If-None-Match' in request.headers;
  let ok = unchanged || (res.status === 200 && /\bhit\b/.test(res.headers['Cache-Status'] || ''));
  if (res.status === 200) whole.add(res.timings.duration);
  if (ok && judged && !unchanged) ok = isSnapshot(res, key);
  if (ok && res.headers['Etag']) seen = { key, tag: res.headers['Etag'] };
  judge(kind, res, ok);
}

const opening = '{"snapshot":';

function isSnapshot(res, key) {
  try {
    const { snapshot, freshness } = res.json();
    const document = res.body.slice(opening.length, res.body.lastIndexOf(',"freshness":'));
    console.log(`answer ${key} ${crypto.sha256(document, 'hex')}`);
    return snapshot !== null && ['FRESH', 'STALE'].includes(freshness);
  } catch {
    return false;
  }
}

function unread() {
  const sent = since();
  const res = http.get(`${api}new-${env.PHASE}-${exec.vu.idInTest}-${exec.vu.iterationInScenario}`, params('new'));
  judge('new', res, queueable(res, sent, [202]) && retryAfter(res));
}

function refresh() {
  const sent = since();
  const res = http.post(`${api}stored-${popular()}/refresh`, null, params('refresh'));
  judge('refresh', res, queueable(res, sent, [202, 429]) && (res.status === 202 || retryAfter(res)));
}

function unknown() {
  const path = Math.random() < 0.5 ? '/v1/nowhere/character/a' : `/v1/${env.SOURCE}/nothing/a`;
  const res = http.get(env.API + path, params('unknown'));
  judge('unknown', res, res.status === 404 && /problem\+json/.test(res.headers['Content-Type'] || ''));
}

export function handleSummary(data) {
  return { [env.SUMMARY || 'stdout']: JSON.stringify(data) };
}
