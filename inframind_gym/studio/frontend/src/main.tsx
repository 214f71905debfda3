// The page: its frame, and which part of it an address shows.
import { useEffect } from "react";
import { createRoot } from "react-dom/client";
import { isStatic, useGet, type Info } from "./api";
import { Boards } from "./pages/boards";
import { Compare } from "./pages/compare";
import { RunPage } from "./pages/run";
import { TeamPage } from "./pages/team";
import { ErrorNote, TITLES, useHash } from "./ui";
import "./studio.css";

const NAME = /^[0-9a-f]+$/; // of a run

function Content({ path, info }: { path: string[]; info: Info }) {
  const [first = "pool", second, third] = path;
  if (first === "run" && NAME.test(second ?? "")) return <RunPage key={second} id={second} />;
  if (first === "compare" && NAME.test(second ?? "") && NAME.test(third ?? "")) return <Compare first={second} second={third} />;
  if (first === "boards") return <Boards name={second} />;
  if (first in TITLES) return <TeamPage key={first} team={first} info={info} />;
  return <p>There is no such page. <a href="#/pool">Go to the pool.</a></p>;
}

function App() {
  const path = useHash(), info = useGet<Info>("info"), here = path[0] ?? "pool";
  const links = [...Object.entries(TITLES), ["boards", "Boards"]];
  useEffect(() => {
    document.title = `${links.find(([key]) => key === here)?.[1] ?? "Run"}: inframind studio`;
  }, [here]);
  return (
    <>
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <header>
        <div className="frame">
          <a className="brand" href="#/pool">inframind <b>studio</b></a>
          <nav aria-label="pages">
            {links.map(([key, title]) => <a key={key} href={`#/${key}`} aria-current={here === key ? "page" : undefined}>{title}</a>)}
          </nav>
          {isStatic && <span className="chip">record</span>}
        </div>
      </header>
      <main id="main" className="frame" tabIndex={-1}>
        <ErrorNote error={info.error} />
        {info.value && <Content path={path} info={info.value} />}
      </main>
    </>
  );
}

createRoot(document.getElementById("root")!).render(<App />);
