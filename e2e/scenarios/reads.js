// Users of a site whose pages are read through freshet, for k6. `go run ./scenarios
// reads` starts everything else and calls this once for each phase.
//
// What is asked for, and what counts as success; anything else is a failure, also no
// answer at all:
//
//   90 %  stored   a stored key, few keys by most (zipf); every fifth again with its tag.
//                  200 from the cache or the store, or 304 to the tag. Never a 503.
//    4 %  stale    a stored key whose check is too old. The same; it may be fresh by now.
//    3 %  new      a key that nothing is stored of. 202 with Retry-After; 503 with
//                  Retry-After if Redis is down, for then nothing can be queued.
//    2 %  refresh  a POST for a stored key. 202, or 429 with Retry-After if somebody
//                  did a moment ago; 503 with Retry-After if Redis is down.
//    1 %  unknown  a source or a facet that is not there. 404 as problem details.
//
// Once Redis is dead, only 503 is right for new and refresh; some of the stored keys
// are then cold: nobody has read them before, so that they come from the database.
//
// The time of the first two is from the first byte sent to the last received, of those
// answers that have a body. Every hundredth of these is logged by the hash of its
// document, and judged by whoever started this.
import http from 'k6/http';
import { check, sleep } from 'k6';
import crypto from 'k6/crypto';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';

const env = __ENV;
const api = `${env.API}/v1/${env.SOURCE}/character/`;
const stored = Number(env.STORED); // of stored-0, stored-1, …
const stale = Number(env.STALE);   // of stale-0, …
const cold = Number(env.COLD);     // of cold-0, …
const withoutRedis = env.WITHOUT === 'redis';
// Until when Redis lives, and from when on everybody has noticed its death, in ms of
// this run; between them either answer may come.
const alive = Number(env.KILLED || 0) * 1000 - 1000;
const noticed = alive + 3000;
const part = Math.max(0.01, 30 / (Number(env.USERS) * Number(env.SECONDS) / 4)); // of bodies that are judged
// 2 to 6 seconds between two requests: 3,000 users make 750 a second.
const think = () => sleep(2 + 4 * Math.random());

const kinds = ['stored', 'stale', 'new', 'refresh', 'unknown'].concat(withoutRedis ? ['cold'] : []);
const success = Object.fromEntries(kinds.map((kind) => [kind, new Rate(`success_${kind}`)]));
const took = Object.fromEntries(kinds.map((kind) => [kind, new Trend(`took_${kind}`)]));
const whole = new Trend('took_whole'); // of stored keys, with a body
const refused = new Counter('refused'); // that was to be queued

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

// The runner breaks what this phase is about when all users are there.
export function setup() {
  if (env.BEGIN) http.post(env.BEGIN);
}

export default function () {
  if (exec.vu.iterationInScenario === 0) sleep(6 * Math.random()); // not all at once
  const p = Math.random();
  if (withoutRedis && p < 0.05 && since() > noticed) read('cold', `cold-${exec.scenario.iterationInTest % cold}`);
  else if (p < 0.90) read('stored', `stored-${popular()}`);
  else if (p < 0.94) read('stale', `stale-${exec.scenario.iterationInTest % stale}`);
  else if (p < 0.97) unread();
  else if (p < 0.99) refresh();
  else unknown();
  think();
}

// popular draws a key's number: the first is asked for twice as often as the second,
// and n times as often as the n-th.
function popular() {
  return Math.min(stored, Math.floor(Math.exp(Math.random() * Math.log(stored + 1)))) - 1;
}

const params = (kind, more) => Object.assign({
  headers: { 'Accept-Encoding': 'zstd, gzip' },
  tags: { name: kind },
}, more);

const since = () => Date.now() - exec.scenario.startTime;

// queueable says whether an answer to what is to be queued is right, of a request that
// was sent at a time; ok are the statuses of one that is.
function queueable(res, sent, ok) {
  if (res.status === 503 && withoutRedis && sent > noticed) refused.add(1);
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

let seen; // the key that this user read last, and its tag

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
