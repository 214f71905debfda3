// Results folders, and the report of one: leaderboard, comparison, episodes with their timelines.
import { useState } from "react";
import { isStatic, reportPath, useGet } from "../api";
import { ErrorNote, Table } from "../ui";

const EPISODES = 12;
interface Folder { name: string; suite: string; kind: string; policies: string[]; cells: number; planned: number; started: string; error?: string }

export function Boards({ name }: { name?: string }) {
  const found = useGet<Folder[]>("boards");
  return name ? <Board key={name} name={name} /> : (
    <>
      <h1>Boards</h1>
      <p>Results folders of <code>inframind bench run</code>. A board opens with its leaderboard, comparisons, and episodes that are played again with their timelines.</p>
      <ErrorNote error={found.error} />
      {found.value && (
        <Table
          label="boards" rows={found.value} keyOf={(row) => row.name}
          empty={<>No results folder was found. <code>inframind bench run --suite starter</code> makes one; <code>--results FOLDER</code> shows another.</>}
          columns={[
            { head: "folder", left: true, cell: (row) => (row.error ? row.name : <a href={`#/boards/${encodeURIComponent(row.name)}`}>{row.name}</a>) },
            { head: "suite", left: true, cell: (row) => row.suite },
            { head: "kind", left: true, cell: (row) => row.kind },
            { head: "cells", cell: (row) => (row.planned ? `${row.cells} of ${row.planned}` : row.cells) },
            { head: "policies", left: true, wrap: true, cell: (row) => row.error ?? <span className="clamp">{row.policies.join(", ")}</span> },
            { head: "started", left: true, cell: (row) => row.started?.slice(0, 16).replace("T", " ") },
          ]}
        />
      )}
    </>
  );
}

function Board({ name }: { name: string }) {
  const [isThere, set] = useState(false), [episodes, setEpisodes] = useState(0), path = reportPath(name, episodes);
  const play = () => {
    set(false);
    setEpisodes(EPISODES);
  };
  return (
    <>
      <p className="crumbs"><a href="#/boards">Boards</a> / {name}</p>
      <div className="heading">
        <h1>{name}</h1>
        {!isStatic && <button onClick={play} disabled={episodes > 0}>Show episodes</button>}
        <a className="button" href={path} target="_blank" rel="noreferrer">Open alone</a>
      </div>
      {!isThere && !isStatic && <p className="hint" role="status">{episodes ? "Worst and median episodes are played again, bit by bit: this takes a while, the first time." : "Reading the board…"}</p>}
      <iframe title={`report of ${name}`} src={path} sandbox="allow-scripts" onLoad={() => set(true)} />
    </>
  );
}
