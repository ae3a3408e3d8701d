// Reads a snapshot with the types that openapi-typescript generates.
import createClient from "openapi-fetch";
import type { components, paths } from "./freshet.js";

const client = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: process.argv[2] });
const read = await client.GET("/v1/{source}/{facet}/{key}", {
  params: { path: { source: "nexon", facet: "character", key: "somebody" }, query: { wait: "20s" } },
});
const freshness: components["schemas"]["Freshness"] | undefined = read.data?.freshness;
const equipment: unknown = read.data?.snapshot?.["item-equipment"];
if (freshness !== "FRESH" || typeof equipment !== "object") {
  throw new Error(`typescript: got ${read.response.status} ${freshness}, want a fresh snapshot`);
}
const invalid = await client.GET("/v1/{source}/{facet}/{key}", {
  params: { path: { source: "nexon", facet: "character-by-ocid", key: "a b" } },
});
const code: components["schemas"]["ProblemCode"] | undefined = invalid.error?.code;
if (code !== "bad-key") {
  throw new Error(`typescript: got ${invalid.response.status} ${code}, want bad-key`);
}
console.log(`typescript: read a snapshot that is ${freshness}`);
