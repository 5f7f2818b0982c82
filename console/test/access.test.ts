// Everybody can use it: axe-core objects to nothing, and nothing sticks out, on a phone and on a desk, in light and in dark.

import { afterEach, beforeEach, expect, test } from "vitest";
import { Site, objections, say, state } from "./page.ts";

let site: Site;

beforeEach(async () => {
  site = await Site.start();
});

afterEach(() => site.stop());

const LONG = "a-very-long-word-that-does-not-fit-into-a-narrow-page-at-all-and-has-to-be-broken-somewhere";

for (const width of [390, 1280]) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`at ${width} pixels in ${colorScheme}`, async () => {
      const chat = await site.page();
      await chat.emulateMedia({ colorScheme });
      await chat.setViewportSize({ width, height: 844 });
      const check = async (name: string, page = chat) => {
        expect(await page.evaluate("document.documentElement.scrollWidth"), name).toBeLessThanOrEqual(width);
        expect(await objections(page), name).toEqual([]);
      };
      await state(chat, "connected");
      await check("an empty chat");
      await say(chat, `/plan ${LONG}`);
      await chat.locator(".turn[aria-busy=false]").waitFor();
      await say(chat, "/op index 2 0");
      await chat.locator(".tool.success").waitFor();
      await say(chat, `/confirm ${LONG}`);
      await chat.getByRole("button", { name: "Approve" }).waitFor();
      await check("a chat that waits for an answer");

      const page = await site.page("#sessions");
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 844 });
      await page.getByRole("row", { name: /waiting/ }).waitFor();
      await check("sessions", page);
      await page.getByRole("row", { name: /waiting/ }).getByRole("link").click();
      await page.getByRole("listitem").filter({ hasText: "agent.user_confirm" }).waitFor();
      await check("a session", page);
      for (const [name, shows] of [["Tasks", "completed"], ["Backends", "There are no MCP servers."], ["Settings", "store.url"]] as const) {
        await page.getByRole("link", { name, exact: true }).click();
        await page.getByText(shows).first().waitFor();
        await check(name, page);
      }
      await page.getByRole("link", { name: "Backends", exact: true }).click();
      await page.getByRole("button", { name: "Add a server" }).click();
      const form = page.getByRole("form", { name: "Add a server" });
      await form.getByLabel("Program").check();
      await check("a form for a program", page);
      await form.getByLabel("Address").check();
      await form.getByLabel("Name").fill("away");
      // Nobody listens there.
      await form.getByLabel("URL").fill(`http://127.0.0.1:9/${LONG}`);
      await form.getByLabel("Headers").fill(LONG);
      await form.getByRole("button", { name: "Add" }).click();
      await form.getByRole("alert").getByText("Line 1").waitFor();
      await check("a form with a mistake", page);
      await form.getByLabel("Headers").fill(`X-Long: ${LONG}`);
      await form.getByRole("button", { name: "Add" }).click();
      await page.getByRole("button", { name: "Remove away" }).click();
      await page.getByText("Remove it for all clients?").waitFor();
      await check("a question before a removal", page);
      await page.getByRole("link", { name: "Node", exact: true }).click();
      await page.getByRole("img", { name: /^Events: stored/ }).waitFor();
      // The charts follow the page's width a moment later.
      await page.waitForFunction(`document.documentElement.scrollWidth <= ${width}`);
      await check("the node", page);
      expect(site.complaints).toEqual([]);
    });
  }
}
