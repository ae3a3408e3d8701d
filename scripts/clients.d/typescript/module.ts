// Reads a snapshot with the browser module and its types. Node has no tabs, but runs the module too.
import { Client, Problem, SignedOut, type Event, type Result, type Token } from "./module/freshet.js";

type Character = { "item-equipment": object };
const renew = async (signal: AbortSignal): Promise<Token> => {
  signal.throwIfAborted();
  throw new SignedOut();
};
const client = new Client(process.argv[2]!, { token: { value: "none", expires: new Date(0) }, renew, session: "somebody" });
const entity = { source: "nexon", facet: "character", key: "somebody" };
const read: Result<Character> = await client.get<Character>(entity, { wait: 20 });
if (read.freshness !== "FRESH" || typeof read.snapshot?.["item-equipment"] !== "object") {
  throw new Error(`module: got ${read.freshness}, want a fresh snapshot`);
}
const [item] = await client.getMany("nexon", "character", ["somebody"]);
if (item?.status !== 200) {
  throw new Error(`module: got ${item?.status}, want 200`);
}
let event: Event | undefined;
for await (event of client.watch(entity, { signal: AbortSignal.timeout(20_000) })) {
  break;
}
if (event?.type !== "changed") {
  throw new Error(`module: got the event ${event?.type}, want changed`);
}
const invalid: unknown = await client.refresh({ ...entity, facet: "character-by-ocid", key: "a b" }, { sensitive: true }).catch((error: unknown) => error);
if (!(invalid instanceof Problem) || invalid.code !== "bad-key") {
  throw new Error(`module: got ${invalid}, want bad-key`);
}
console.log(`module: read a snapshot that is ${read.freshness}`);
process.exit(); // in a Node with navigator.locks, the channel between tabs keeps the process alive
