// Markdown as it streams in: read anew with each piece, made into elements and never into HTML text.

import type { ComponentChildren, VNode } from "preact";
import { useMemo } from "preact/hooks";

type Block =
  | { readonly is: "code"; readonly language: string; readonly text: string }
  | { readonly is: "heading"; readonly level: number; readonly text: string }
  | { readonly is: "list"; readonly ordered: boolean; readonly items: readonly string[] }
  | { readonly is: "quote"; readonly text: string }
  | { readonly is: "table"; readonly rows: readonly (readonly string[])[] }
  | { readonly is: "rule" }
  | { readonly is: "text"; readonly text: string };

const FENCE = /^\s*```\s*(\S*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBER = /^\s*\d+[.)]\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const ROW = /^\s*\|(.*)\|\s*$/;
/** The line under a table's head. */
const UNDER_HEAD = /^[\s|:-]+$/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;

/** A fence that is not closed yet is code all the same: the rest is still to come. */
export function blocks(source: string): Block[] {
  const found: Block[] = [];
  const lines = source.split("\n");
  for (let at = 0; at < lines.length; ) {
    const line = lines[at] ?? "";
    const take = (pattern: RegExp): string[] => {
      const taken: string[] = [];
      for (let match = pattern.exec(lines[at] ?? ""); match !== null && at < lines.length; match = pattern.exec(lines[at] ?? "")) {
        taken.push(match[1] ?? "");
        at++;
      }
      return taken;
    };
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence !== null) {
      const end = lines.findIndex((later, n) => n > at && /^\s*```\s*$/.test(later));
      const to = end === -1 ? lines.length : end;
      found.push({ is: "code", language: fence[1] ?? "", text: lines.slice(at + 1, to).join("\n") });
      at = to + 1;
    } else if (heading !== null) {
      found.push({ is: "heading", level: heading[1]?.length ?? 1, text: heading[2] ?? "" });
      at++;
    } else if (RULE.test(line)) {
      found.push({ is: "rule" });
      at++;
    } else if (ROW.test(line)) {
      const rows = take(ROW).filter((row, n) => n !== 1 || !UNDER_HEAD.test(row));
      found.push({ is: "table", rows: rows.map((row) => row.split("|").map((cell) => cell.trim())) });
    } else if (BULLET.test(line)) found.push({ is: "list", ordered: false, items: take(BULLET) });
    else if (NUMBER.test(line)) found.push({ is: "list", ordered: true, items: take(NUMBER) });
    else if (QUOTE.test(line)) found.push({ is: "quote", text: take(QUOTE).join("\n") });
    else if (line.trim() === "") at++;
    else {
      const from = at;
      const starts = (next: string) => next.trim() === "" || [FENCE, HEADING, BULLET, NUMBER, QUOTE, ROW].some((pattern) => pattern.test(next));
      do at++;
      while (at < lines.length && !starts(lines[at] ?? ""));
      found.push({ is: "text", text: lines.slice(from, at).join("\n") });
    }
  }
  return found;
}

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, strong, emphasis, label, href] = match;
    parts.push(text.slice(from, match.index));
    from = match.index + whole.length;
    if (code !== undefined) parts.push(<code>{code}</code>);
    else if (strong !== undefined) parts.push(<strong>{strong}</strong>);
    else if (emphasis !== undefined) parts.push(<em>{emphasis}</em>);
    else parts.push(<a href={href} rel="noreferrer noopener" target="_blank">{label}</a>);
  }
  parts.push(text.slice(from));
  return parts;
}

export function Markdown({ source }: { source: string }): VNode {
  return <div class="markdown">{blocks(source).map((block, n) => <Shown key={n} block={block} />)}</div>;
}

/** Only the end of an answer grows: what stands before it is not made anew. */
function Shown({ block }: { block: Block }): VNode {
  return useMemo(() => show(block), [JSON.stringify(block)]);
}

function show(block: Block): VNode {
  switch (block.is) {
    case "code":
      return <pre tabIndex={0} aria-label={block.language ? `Code, ${block.language}` : "Code"}><code>{block.text}</code></pre>;
    case "heading":
      // The page has its own headings; an answer's are below them.
      return <p role="heading" aria-level={Math.min(6, block.level + 2)} class="heading">{inline(block.text)}</p>;
    case "list": {
      const items = block.items.map((item, n) => <li key={n}>{inline(item)}</li>);
      return block.ordered ? <ol>{items}</ol> : <ul>{items}</ul>;
    }
    case "quote":
      return <blockquote>{inline(block.text)}</blockquote>;
    case "rule":
      return <hr />;
    case "table": {
      const [head = [], ...rest] = block.rows;
      return (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead><tr>{head.map((cell, n) => <th key={n} scope="col">{inline(cell)}</th>)}</tr></thead>
            <tbody>{rest.map((row, n) => <tr key={n}>{row.map((cell, m) => <td key={m}>{inline(cell)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      );
    }
    case "text":
      return <p>{inline(block.text)}</p>;
  }
}
