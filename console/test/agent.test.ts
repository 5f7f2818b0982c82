// Picking an agent, and editing what it asks: a program of somebody's own, which asks about its plan before it works.

import { type Server as HttpServer, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Site, say, state } from "./page.ts";

interface Answer {
  readonly confirmed: boolean;
  readonly reason?: string;
  readonly tasks?: readonly { readonly title: string }[];
}

let program: HttpServer;
let site: Site;

/** Asks, and then tells what it was answered. */
function speak(answer: Answer | undefined): object[] {
  if (answer !== undefined) {
    const { confirmed, reason = "", tasks = [] } = answer;
    return [{ event: "agent.final_answer", content: `${confirmed ? `will do ${tasks.map(({ title }) => title).join(", ")}` : `will not: ${reason}`}` }];
  }
  const tasks = ["Dig", "Sow", "Wait"].map((title, n) => ({ id: `t${n}`, title, description: `${title} in the garden` }));
  return [
    { event: "agent.tool_call", content: "looks at the weather", step_id: "w", metadata: { tool: "weather", args: { place: "here" }, status: "running" } },
    { event: "agent.tool_result", content: "dry", step_id: "w", metadata: { tool: "weather", status: "success", duration_ms: 12 } },
    { event: "agent.user_confirm", content: "Is this the plan?", step_id: "q", metadata: { scope: "plan", tasks } },
  ];
}

beforeEach(async () => {
  program = createServer((request, response) => {
    let body = "";
    request.on("data", (piece) => (body += piece));
    request.on("end", () => {
      response.setHeader("content-type", "application/x-ndjson");
      const { answer } = JSON.parse(body) as { answer?: Answer };
      response.end(speak(answer).map((event) => `${JSON.stringify(event)}\n`).join(""));
    });
  });
  await new Promise<void>((resolve) => program.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(program.address() as AddressInfo).port}/`;
  site = await Site.start({ BOWLINE_AGENTS__DEMO__KIND: "demo", BOWLINE_AGENTS__GARDENER__KIND: "http", BOWLINE_AGENTS__GARDENER__URL: url });
});

afterEach(async () => {
  await site.stop();
  await new Promise((resolve) => program.close(resolve));
});

test("another agent is picked, its plan edited and approved, and the next one declined with a reason", async () => {
  const page = await site.page();
  await state(page, "connected");
  await say(page, "/echo to the demo agent");
  await page.locator(".turn[aria-busy=false]").waitFor();
  await page.getByLabel("Agent").selectOption("gardener");
  // Another agent is another conversation.
  await page.locator(".turn").waitFor({ state: "detached" });
  await say(page, "make me a garden");
  const asks = page.getByRole("region", { name: "The agent asks" });
  await asks.getByText("Is this the plan?").waitFor();
  await page.locator(".tool.success").getByText("weather").waitFor();
  await page.locator(".tool.success").getByText("success, 12 ms").waitFor();
  await asks.getByLabel("Task 1;").fill("Dig deep");
  await asks.getByLabel("Task 3;").fill("");
  await asks.getByRole("button", { name: "Approve" }).click();
  await page.getByText("will do Dig deep, Sow", { exact: true }).waitFor();

  // A reload comes back to the same conversation, with the same agent.
  await page.reload();
  await page.getByText("will do Dig deep, Sow", { exact: true }).waitFor();
  expect(await page.getByLabel("Agent").inputValue()).toBe("gardener");
  await say(page, "and another");
  await asks.getByLabel("Why, if you like").fill("one is enough");
  await asks.getByRole("button", { name: "Decline" }).click();
  await page.getByText("will not: one is enough").waitFor();
  expect(site.complaints).toEqual([]);
});
