// A table that becomes a list of cards where it does not fit. The roles are written out: a table that is laid out as something else
// loses them in browsers.

import type { ComponentChildren, VNode } from "preact";

export interface Column<Row> {
  readonly title: string;
  /** Takes the whole width of a card. */
  readonly wide?: boolean;
  readonly show: (row: Row) => ComponentChildren;
}

interface TableProps<Row> {
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  readonly rows: readonly Row[];
  readonly id: (row: Row) => string;
}

export function Table<Row>({ label, columns, rows, id }: TableProps<Row>): VNode {
  return (
    <table role="table" aria-label={label} class="cards">
      <thead role="rowgroup">
        <tr role="row">{columns.map(({ title }) => <th key={title} role="columnheader" scope="col">{title}</th>)}</tr>
      </thead>
      <tbody role="rowgroup">
        {rows.map((row) => (
          <tr key={id(row)} role="row">
            {columns.map(({ title, wide, show }) => (
              <td key={title} role="cell" class={wide ? "wide" : ""}>
                <span class="title" aria-hidden="true">{title}</span>
                <span class="value">{show(row)}</span>
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
