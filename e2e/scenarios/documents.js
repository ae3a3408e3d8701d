// k6 script: users of a website load its XML layouts through freshet. `go run ./scenarios documents`
// starts all other processes and runs this script.
//
// The number of users rises from 0 to 100, 500, 1,000 and 3,000, stays, and falls to 0. SECONDS is the
// length of all stages together; with 750, 3,000 users stay for 5 minutes. A user reads a
// random layout and then waits 1 to 3 seconds. Each response must be 200 with the whole layout.
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const env = __ENV;
const api = `${env.API}/v1/${env.SOURCE}/layout/`;
const keys = env.KEYS.split(' ');
const users = Number(env.USERS);
const stage = (share, part) => ({ duration: `${Math.max(1, Math.round(Number(env.SECONDS) * share / 750))}s`, target: Math.round(users * part) });

const degraded = new Counter('degraded');
const wrong = new Counter('xml_errors');
const latency = new Trend('xml_latency');

export const options = {
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
  systemTags: ['status', 'method', 'name'],
  scenarios: {
    users: {
      executor: 'ramping-vus', startVUs: 0, gracefulRampDown: '30s',
      stages: [stage(30, 1 / 30), stage(60, 1 / 6), stage(120, 1 / 3), stage(180, 1), stage(300, 1), stage(60, 0)],
    },
  },
  thresholds: {
    http_req_failed: ['rate<0.01'],
    http_req_duration: ['p(95)<2000'],
    xml_errors: ['count<100'],
  },
};

export function setup() {
  if (env.BEGIN) http.post(env.BEGIN);
}

export default function () {
  const res = http.get(api + keys[Math.floor(Math.random() * keys.length)], {
    headers: { 'Accept-Encoding': 'gzip' }, tags: { name: 'layout' },
  });
  latency.add(res.timings.duration);
  const whole = check(res, {
    'the status is 200': (r) => r.status === 200,
    'the body is a whole layout': (r) => /<w2:layout[^]*<\/w2:layout>\s*$/.test(r.body || ''),
  });
  if (!whole) wrong.add(1);
  if (res.headers['Freshet-Degraded']) degraded.add(1);
  sleep(1 + 2 * Math.random());
}

export function handleSummary(data) {
  return { [env.SUMMARY || 'stdout']: JSON.stringify(data, null, 1) };
}
