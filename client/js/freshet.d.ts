/** Types of freshet.js. All times in numbers are in seconds. */

/** Identifies an entity: a key of a facet of a source. */
export interface Entity {
  source: string
  facet: string
  key: string
}

/** How current a snapshot is. MISSING is the freshness of items only; `get` throws a Problem instead. */
export type Freshness = 'FRESH' | 'STALE' | 'UPDATING' | 'MISSING' | 'NOT_FOUND'

/** The state of a refresh that is due or was requested. */
export interface RefreshState {
  queued: boolean
  estimatedWaitMs?: number
  measuredAt?: string
  /** A RefreshReason of the contract. */
  reason?: string
  until?: string
}

/** The state of an entity. A member without a value is undefined; times are text of RFC 3339. */
export interface State {
  freshness: Freshness
  lastUpdatedAt?: string
  lastCheckedAt?: string
  /** Undefined if no refresh is due, and after a response 304. */
  refresh?: RefreshState
}

/** The answer for one entity. */
export interface Result<T = Record<string, unknown>> extends State {
  /** The documents of the facet by name. It is set if the freshness is FRESH or STALE, and the facet is not raw. */
  snapshot?: T
  /** The bytes of the document of a raw facet, and their media type. */
  content?: Uint8Array
  mediaType?: string
  etag?: string
  /** Why the content may be outdated, such as UPSTREAM_DOWN; undefined for current content. */
  degraded?: string
  /** The time after which an entity that is UPDATING should be read again. */
  retryAfter?: number
}

/** The answer for one key of `getMany`. A read of the key alone would have this status. */
export interface Item<T = Record<string, unknown>> extends Partial<State> {
  key: string
  status: number
  /** Why an invalid key is rejected. */
  detail?: string
  snapshot?: T
}

/** A change of an entity. It has no content: `get` returns the content, with a conditional read. */
export interface Event extends State {
  /** For `lastEventId`; empty if nothing is stored. */
  id: string
  type: 'changed' | 'checked' | 'notFound' | 'state'
  etag?: string
}

/** A server-sent event. */
export interface RawEvent {
  id: string
  event: string
  data: string
}

export interface Token {
  value: string
  /** The end of the token. It is used only to renew the token early, so clocks may differ. */
  expires?: Date | string | number
}

export interface Options {
  /** May be missing if `renew` returns the first token, or if the service has no authentication. */
  token?: Token
  /**
   * Returns a new token. The signal aborts after 30 s. An error SignedOut means that the issuer has refused the
   * renewal; after any other error it is called once more.
   */
  renew?: (signal: AbortSignal) => Promise<Token>
  /** Called once in each tab when the client is signed out. */
  onSignedOut?: () => void
  /** Tabs share tokens if they have the same origin, base URL and session. Use the user if tabs can have several users. */
  session?: string
  /** Limits one attempt of a request, in addition to `wait`. The default is 10. */
  timeout?: number
  /** Limits the repetitions of a failed read. The default is 2. */
  maxRetries?: number
  /** Limits the memory for snapshots that conditional reads use. The default is 16 MiB; 0 disables conditional reads. */
  maxCacheBytes?: number
}

export interface CallOptions {
  /** Ends the call. */
  signal?: AbortSignal
  /** The request is not repeated after a renewal of the token; the call throws ConfirmRequired. */
  sensitive?: boolean
}

export interface WaitOptions extends CallOptions {
  /** Lets the service delay its response until a refresh has ended, at most for this time. The service allows up to 30. */
  wait?: number
}

export interface StreamOptions {
  /** Ends the sequence with its reason as an error. */
  signal?: AbortSignal
  /** Lets the sequence begin after the event with this id. Several changes since then are one event. */
  lastEventId?: string
  /** Called before each delay and reconnect. Without an error the stream has ended. */
  onReconnect?: (error?: Error) => void
}

/** Calls the HTTP API of one query service. Use one client for all requests of a page. */
export class Client {
  /** The base URL is like https://freshet.example, or / for the origin of the page. */
  constructor(base: string, options?: Options)
  /** Replaces the token, also in the other tabs if there is `renew`. It ends the state "signed out". */
  setToken(token: Token): void
  /** Reads an entity. FRESH, STALE, UPDATING and NOT_FOUND are results; other responses are a Problem. */
  get<T = Record<string, unknown>>(entity: Entity, options?: WaitOptions): Promise<Result<T>>
  /** Reads 1 to 100 keys with one request. The items have the order of the keys. */
  getMany<T = Record<string, unknown>>(source: string, facet: string, keys: string[], options?: CallOptions): Promise<Item<T>[]>
  /** Requests a refresh. The freshness is missing without `wait`, or without the scope read. */
  refresh<T = Record<string, unknown>>(entity: Entity, options?: WaitOptions): Promise<Partial<Result<T>>>
  /** Follows an entity. The first event has the stored state. It reconnects, and continues after the last event. */
  watch(entity: Entity, options?: StreamOptions): AsyncGenerator<Event, never, void>
  /** Follows any stream of server-sent events of the service. The path begins with a slash. */
  stream(path: string, options?: StreamOptions): AsyncGenerator<RawEvent, never, void>
}

/** An error response of the service (RFC 9457). `code` identifies its kind; docs/http-api.md lists the codes. */
export class Problem extends Error {
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly status: number
  /** The time of the header Retry-After, or 0. */
  readonly retryAfter: number
}

/** A request got no complete response. */
export class ConnectionError extends Error {}

/** `renew` failed twice. The next request calls it again. */
export class RenewalFailed extends Error {}

/** The client has no valid token. Every request fails until `setToken`. `renew` throws it if the issuer refuses. */
export class SignedOut extends Error {}

/** The token was renewed, and the sensitive request was not repeated. */
export class ConfirmRequired extends Error {}
