// Client of the HTTP API of a freshet query service, for browsers. docs/clients.md shows its use, and
// freshet.d.ts has the types. The rules are those of the Go client (client/doc.go).
//
// In addition, the tabs of an origin renew a token together. A tab that needs a new token waits for
// the lock NAME, and then looks for a lock "NAME NUMBER" with a number above its last outcome:
//
//   found      another tab has ended a renewal; wait for its message, and use its outcome
//   not found  call renew, send the outcome to the other tabs, and hold the lock "NAME NUMBER" for 10 s
//
// The second lock is necessary because a message may arrive after the first lock. An outcome is a
// token, a sign-out or a failure. A token is only in messages, never in a lock or in the storage.

const earlyRenewal = 300, renewTimeout = 30, renewRetryDelay = 1, earlyRetryDelay = 30 // in seconds, as all times here
const announceTime = 10, messageTimeout = 2
const maxRetryDelay = 10, baseRetryDelay = 0.2, maxRetryBudget = 10, retryRatio = 0.1
const streamIdleTimeout = 45, reconnectDelay = 1, maxReconnectDelay = 30
const maxKeys = 100, cacheOverhead = 400

export class Problem extends Error {
  constructor({ code, title, detail }, status, retryAfter) {
    super(`${code}: ${detail}`)
    Object.assign(this, { name: 'Problem', code, title, detail, status, retryAfter })
  }
}
const errorClass = (name, text) => class extends Error {
  constructor(message = text, options) { super(message, options); this.name = name }
}
export const ConnectionError = errorClass('ConnectionError')
export const RenewalFailed = errorClass('RenewalFailed')
export const SignedOut = errorClass('SignedOut', 'signed out; sign in again and call setToken')
export const ConfirmRequired = errorClass('ConfirmRequired', 'the token was renewed, and the sensitive request was not repeated; let the user confirm it, and call again')

const until = (promise, signal) => !signal ? promise : new Promise((resolve, reject) => {
  const stop = () => reject(signal.reason)
  if (signal.aborted) stop()
  signal.addEventListener('abort', stop)
  promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop))
})
const sleep = (seconds, signal) => until(new Promise(resolve => setTimeout(resolve, seconds * 1000)), signal)
const parse = text => { try { return Object(JSON.parse(text)) } catch { return {} } }
const retryAfter = headers => {
  const value = headers.get('Retry-After')
  return Math.max(0, (/^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000) || 0)
}
const unexpected = subject => new Error(`unexpected ${subject}; it does not come from a freshet query service of this release: check the address`)
const errorOf = ({ status, headers, text }) => {
  const body = parse(text)
  return body.code && body.detail ? new Problem(body, status, retryAfter(headers)) : unexpected(`response ${status}`)
}
// isRaw reports whether the body is the content of a raw facet: it is not JSON, or its ETag is strong.
const isRaw = headers => headers.has('ETag') && (!headers.get('Content-Type')?.startsWith('application/json') || !headers.get('ETag').startsWith('W/'))
const iso = time => time ? new Date(time).toISOString() : undefined
const checkedAt = headers => /^\d+$/.test(headers.get('Age')) ? iso(Date.now() - headers.get('Age') * 1000) : undefined
const freshnessOf = headers => /max-age=[1-9]/.test(headers.get('Cache-Control')) ? 'FRESH' : 'STALE'
const degradedOf = headers => headers.get('Freshet-Degraded') ?? undefined
const resultOf = answer => {
  if (answer.content) {
    const { headers, content } = answer
    return {
      freshness: freshnessOf(headers), content: content.slice(), mediaType: headers.get('Content-Type'), lastUpdatedAt: iso(Date.parse(headers.get('Last-Modified'))),
      lastCheckedAt: checkedAt(headers), etag: headers.get('ETag'), degraded: degradedOf(headers),
    }
  }
  const { status, headers, text } = answer, { freshness, snapshot, lastUpdatedAt, lastCheckedAt, refresh } = parse(text)
  if (!(status === 200 && freshness && snapshot || status === 202 && (freshness || refresh) || status === 404 && freshness === 'NOT_FOUND')) throw errorOf(answer)
  const etag = status === 200 && headers.get('ETag') || undefined
  return { freshness, snapshot, lastUpdatedAt, lastCheckedAt, refresh, etag, degraded: degradedOf(headers), retryAfter: status === 202 ? retryAfter(headers) : undefined }
}
// revalidated returns a snapshot from memory after a response 304.
const revalidated = ({ answer }, headers) => {
  const known = resultOf(answer), updated = Date.parse(headers.get('Last-Modified'))
  return {
    ...known, refresh: undefined, freshness: freshnessOf(headers), degraded: degradedOf(headers),
    lastUpdatedAt: !updated || Math.floor(Date.parse(known.lastUpdatedAt) / 1000) * 1000 === updated ? known.lastUpdatedAt : new Date(updated).toISOString(),
    lastCheckedAt: checkedAt(headers) ?? known.lastCheckedAt,
  }
}
const pathOf = (...parts) => {
  if (parts.some(part => /^\.{0,2}$/.test(part ?? ''))) throw new TypeError('the source, the facet or the key is missing, . or ..')
  return `/v1/${parts.map(encodeURIComponent).join('/')}`
}
const entityPath = ({ source, facet, key }) => pathOf(source, facet, key)
const checkToken = token => {
  if (!/^[\x21-\x7e]+$/.test(token?.value ?? '')) throw new TypeError('the token is empty, or has characters that are invalid in a header')
  return { value: token.value, expires: token.expires }
}
const isTemporary = error => error instanceof ConnectionError || error instanceof RenewalFailed || error instanceof Problem && (error.status === 429 || error.status >= 500)

class Tokens {
  renewAt = Infinity
  last = { at: 0 } // the last outcome; `at` is its number, from the clock
  arrived = () => {} // called after each outcome

  constructor({ token, renew, onSignedOut, session = '' }, base) {
    this.renew = renew
    this.onSignedOut = onSignedOut
    this.name = `freshet ${JSON.stringify([base, session])}`
    if (token) this.store(checkToken(token))
    if (!renew || !globalThis.navigator?.locks || !globalThis.BroadcastChannel || globalThis.origin === 'null') return
    this.channel = new BroadcastChannel(this.name)
    this.channel.onmessage = ({ data }) => {
      if (!data.ask) this.apply(data)
      else if (data.ask === this.last.at) this.channel.postMessage(this.last) // for a tab that was opened after the first message
    }
  }

  store(token) {
    const left = token.expires ? new Date(token.expires) - Date.now() : 0
    this.renewAt = left > 0 ? Date.now() + Math.max(left - earlyRenewal * 1000, left / 2) : Infinity
    this.current = token
    this.signedOut = false
  }

  // get returns the current token. If it expires soon, get starts a renewal in the background.
  async get(signal) {
    if (!this.current && this.renew) await this.renewAfter(undefined, signal)
    if (this.signedOut) throw new SignedOut()
    if (Date.now() >= this.renewAt && !this.running) {
      this.renewAt = Date.now() + earlyRetryDelay * 1000
      this.start()
    }
    return this.current
  }

  // renewAfter waits until the token has been replaced. If the signal aborts, the renewal continues.
  async renewAfter(token, signal) {
    while (this.current === token && !this.signedOut) await until(this.running ?? this.start(), signal)
    if (this.signedOut) throw new SignedOut()
  }

  // reject returns the error for the rejection of a token that a request has got after a renewal.
  reject(token, problem) {
    if (this.current === token) this.publish({})
    return this.signedOut ? new SignedOut(undefined, { cause: problem }) : problem
  }

  publish(outcome) {
    outcome.at = Math.max(Date.now(), this.last.at + 1)
    this.apply(outcome)
    this.channel?.postMessage(outcome)
  }

  apply(outcome) {
    if (outcome.at <= this.last.at) return
    this.last = outcome
    if (outcome.token) this.store(outcome.token)
    else if (!outcome.failed && !this.signedOut) {
      this.signedOut = true
      this.current = undefined
      if (this.onSignedOut) queueMicrotask(this.onSignedOut)
    }
    this.arrived()
  }

  start() {
    const began = this.last.at
    const work = async () => {
      if (this.channel) await this.catchUp()
      const outcome = this.last.at === began && await this.call()
      if (outcome && this.last.at === began) { // otherwise setToken was called during the renewal
        this.publish(outcome)
        if (this.channel) await new Promise(held => navigator.locks.request(`${this.name} ${outcome.at}`, () => { held(); return sleep(announceTime) }).catch(held))
      }
      if (this.last.failed) throw new RenewalFailed(this.last.failed)
    }
    this.running = (this.channel ? navigator.locks.request(this.name, work) : work()).finally(() => { this.running = undefined })
    this.running.catch(() => {}) // the waiting requests get the error
    return this.running
  }

  // catchUp waits for the outcome of another tab that has not arrived yet.
  async catchUp() {
    const prefix = `${this.name} `, { held } = await navigator.locks.query()
    const newest = Math.max(0, ...held.filter(lock => lock.name.startsWith(prefix)).map(lock => Number(lock.name.slice(prefix.length))))
    if (newest <= this.last.at) return
    const arrived = new Promise(resolve => { this.arrived = resolve })
    this.channel.postMessage({ ask: newest })
    await Promise.race([arrived, sleep(messageTimeout)])
  }

  // call returns the outcome of a renewal. Every error except SignedOut is temporary.
  async call(again = true) {
    const signal = AbortSignal.timeout(renewTimeout * 1000)
    try {
      return { token: checkToken(await until((async () => this.renew(signal))(), signal)) }
    } catch (error) {
      if (error instanceof SignedOut) return {}
      const text = `the token could not be renewed; repeat the request later: ${error}`
      if (!again) return { failed: this.current ? text.replaceAll(this.current.value, '[redacted]') : text }
    }
    await sleep(renewRetryDelay)
    return this.call(false)
  }
}

export class Client {
  #base; #options; #tokens; #cache = new Map(); #cacheBytes = 0; #budget = maxRetryBudget; #pause = { until: 0 }

  constructor(base, { timeout = 10, maxRetries = 2, maxCacheBytes = 16 << 20, ...tokens } = {}) {
    const url = new URL(base, globalThis.location?.href)
    if (!/^https?:$/.test(url.protocol) || url.username || url.search || url.hash) throw new TypeError('invalid base URL; it must have the form https://freshet.example, without a user and a query')
    this.#base = url.href.replace(/\/+$/, '')
    this.#options = { timeout, maxRetries, maxCacheBytes }
    this.#tokens = new Tokens(tokens, this.#base)
  }

  setToken(token) { this.#tokens.publish({ token: checkToken(token) }) }

  async get(entity, options) {
    const path = entityPath(entity), known = this.#cache.get(path)
    const answer = await this.#send({ ...options, path, safe: true, etag: known?.etag })
    const unchanged = answer.status === 304 && known, result = unchanged ? revalidated(known, answer.headers) : resultOf(answer)
    this.#remember(path, result.etag, unchanged ? known.answer : answer)
    return result
  }

  async getMany(source, facet, keys, options) {
    if (!(keys.length > 0 && keys.length <= maxKeys)) throw new RangeError(`read ${keys.length} keys: one call must have 1 to ${maxKeys}; split the keys`)
    const answer = await this.#send({ ...options, path: `${pathOf(source, facet)}?${new URLSearchParams(keys.map(key => ['key', key]))}`, safe: true })
    const { items } = parse(answer.text)
    if (answer.status !== 200 || items?.length !== keys.length) throw errorOf(answer)
    return items
  }

  async refresh(entity, options) {
    const idempotencyKey = Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('')
    const answer = await this.#send({ ...options, path: `${entityPath(entity)}/refresh`, method: 'POST', safe: true, idempotencyKey })
    return answer.status === 204 ? {} : resultOf(answer)
  }

  async *watch(entity, options) {
    for await (const { id, event, data } of this.stream(`${entityPath(entity)}/events`, options)) {
      const body = parse(data)
      if (!body.freshness) throw unexpected('event')
      yield { ...body, id, type: event }
    }
  }

  async *stream(path, { signal, lastEventId, onReconnect } = {}) {
    if (!path.startsWith('/')) throw new TypeError('the path must begin with a slash') // otherwise another host could get the token
    for (let delay = reconnectDelay, failures = 0; ;) {
      let reader, error
      const close = () => reader?.cancel().catch(() => {})
      try {
        const answer = await this.#send({ path, signal, lastEventId, stream: true })
        reader = answer.reader
        if (!reader) throw errorOf(answer)
        for (let rest = ''; ;) {
          const idle = setTimeout(close, streamIdleTimeout * 1000)
          const { value, done } = await reader.read().catch(() => ({ done: true })).finally(() => clearTimeout(idle))
          signal?.throwIfAborted()
          if (done) break
          failures = 0
          const blocks = (rest + value).split(/\r?\n\r?\n/)
          rest = blocks.pop()
          for (const block of blocks) { // the service writes an event as one block, with one line of data
            const { id = '', event = 'message', data, retry } = Object.fromEntries(block.split(/\r?\n/).map(line => /^([^:]*):? ?([^]*)$/.exec(line).slice(1)))
            if (/^\d+$/.test(retry)) delay = retry / 1000
            lastEventId = id || lastEventId
            if (data !== undefined) yield { id, event, data }
          }
        }
      } catch (failure) {
        if (!isTemporary(failure)) throw failure
        error = failure
      } finally {
        close()
      }
      onReconnect?.(error)
      const backoff = Math.min(Math.max(delay, baseRetryDelay) * 2 ** Math.min(failures++, 5), maxReconnectDelay)
      await sleep(Math.max(backoff, error?.retryAfter ?? 0) * (1 + Math.random() / 4), signal)
    }
  }

  #remember(path, etag, answer) {
    const forget = key => { this.#cacheBytes -= this.#cache.get(key)?.size ?? 0; this.#cache.delete(key) }
    const size = 2 * (answer.text.length + path.length) + (answer.content?.length ?? 0) + cacheOverhead, { maxCacheBytes } = this.#options
    forget(path)
    if (!etag || size > maxCacheBytes) return
    this.#cache.set(path, { etag, answer, size })
    this.#cacheBytes += size
    for (const leastUsed of this.#cache.keys()) if (this.#cacheBytes > maxCacheBytes) forget(leastUsed)
  }

  // #send sends a request, and repeats it according to the rules.
  async #send(request) {
    this.#budget = Math.min(maxRetryBudget, this.#budget + retryRatio)
    for (let retries = 0, renewed = false; ;) {
      const left = (this.#pause.until - Date.now()) / 1000
      if (left > maxRetryDelay) throw Object.assign(errorOf(this.#pause.answer), { retryAfter: left })
      if (left > 0) await sleep(left, request.signal)
      const token = await this.#tokens.get(request.signal)
      const answer = await this.#fetch(request, token?.value)
      if (answer.code === 'token-expired' && this.#tokens.renew) {
        if (renewed) throw this.#tokens.reject(token, errorOf(answer))
        await this.#tokens.renewAfter(token, request.signal)
        if (request.sensitive) throw new ConfirmRequired()
        renewed = true
        continue
      }
      const { status, code, after = 0, failure } = answer
      if (status === 429 && answer.headers.get('RateLimit')?.startsWith('"requests";r=0;')) this.#pause = { until: Date.now() + after * 1000, answer }
      const again = request.safe && code !== 'cooldown' && (failure || [429, 500, 502, 503, 504].includes(status))
      if (!again || after > maxRetryDelay || retries >= this.#options.maxRetries || this.#budget < 1) {
        if (failure) throw failure
        return answer
      }
      this.#budget--
      await sleep(after + Math.random() * baseRetryDelay * 2 ** retries++, request.signal)
    }
  }

  // #fetch sends a request once. Its result has `failure` if there is no complete response.
  async #fetch({ method = 'GET', path, etag, wait = 0, stream, lastEventId, idempotencyKey, signal }, token) {
    const headers = new Headers(Object.entries({
      Authorization: token && `Bearer ${token}`, 'If-None-Match': etag, Prefer: wait > 0 && `wait=${Math.ceil(wait)}`,
      Accept: stream && 'text/event-stream', 'Last-Event-ID': lastEventId, 'Idempotency-Key': idempotencyKey, 'Content-Type': method === 'POST' && 'application/json',
    }).filter(([, value]) => value))
    const stop = new AbortController(), limit = this.#options.timeout + wait
    const timer = setTimeout(() => stop.abort(new Error(`the timeout of ${limit} s has expired`)), limit * 1000)
    try {
      const response = await fetch(this.#base + path, {
        method, headers, signal: AbortSignal.any(signal ? [signal, stop.signal] : [stop.signal]),
        cache: 'no-store', redirect: 'manual', // after a redirect, another address would get the token
      })
      const { status } = response
      if (stream && status === 200 && response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
        return { status, reader: response.body.pipeThrough(new TextDecoderStream()).getReader() }
      }
      const raw = status === 200 && isRaw(response.headers)
      const content = raw ? new Uint8Array(await response.arrayBuffer()) : undefined, text = raw ? '' : await response.text()
      return { status, headers: response.headers, text, content, code: status >= 400 ? parse(text).code : undefined, after: retryAfter(response.headers) }
    } catch (error) {
      signal?.throwIfAborted()
      return { failure: new ConnectionError(`no response from ${this.#base}: ${error.message}; check its address, and whether it runs`) }
    } finally {
      clearTimeout(timer)
    }
  }
}
