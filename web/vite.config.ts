import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** index.html for the built files: the same page, pointing at them. */
function page(): Plugin {
  return {
    name: "pathsum-page",
    apply: "build",
    generateBundle() {
      const text = readFileSync(new URL("index.html", import.meta.url), "utf8");
      const script = '<script type="module" src="/src/main.ts"></script>';
      if (!text.includes(script)) this.error(`index.html does not hold ${script}`);
      const built = text
        .replace(new RegExp(`\\s*${script}`), "")
        .replace(
          /(\s*)<\/head>/,
          '$1  <script type="module" src="./app.js"></script>$1  <link rel="stylesheet" href="./app.css" />$1</head>',
        );
      this.emitFile({ type: "asset", fileName: "index.html", source: built });
    },
  };
}

interface Package {
  name: string;
  version: string;
  license: string;
  text: string;
}

/** The package that a module of node_modules belongs to, with the text of its license. */
function packageOf(module: string): Package {
  let folder = dirname(module);
  const named = (): boolean => {
    const file = join(folder, "package.json");
    return existsSync(file) && "version" in (JSON.parse(readFileSync(file, "utf8")) as object);
  };
  while (!named()) {
    if (folder === dirname(folder)) throw new Error(`${module} belongs to no package`);
    folder = dirname(folder);
  }
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Package;
  const file = readdirSync(folder).find((entry) => /^licen[cs]e(\.\w+)?$/i.test(entry));
  if (!file || !license) throw new Error(`${name} ${version} has no license; what it is part of cannot be distributed`);
  return { name, version, license, text: readFileSync(join(folder, file), "utf8").replaceAll("\r\n", "\n").trim() };
}

/** THIRD-PARTY-NOTICES.txt: the licenses of what the built script contains, which also names them at its top. */
function notices(): Plugin {
  return {
    name: "pathsum-notices",
    apply: "build",
    generateBundle(_, bundle) {
      const found = new Map<string, Package>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        for (const [id, module] of Object.entries(chunk.modules)) {
          const file = id.replace(/^\0/, "").replace(/\?.*$/, "");
          if (!file.includes("node_modules/") || module.renderedLength === 0) continue;
          const one = packageOf(file);
          found.set(one.name, one);
        }
        const sorted = [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
        if (sorted.length === 0) this.error("the script contains no package, which cannot be: Svelte is one");
        const names = sorted.map((one) => `${one.name} ${one.version} (${one.license}; ${copyright(one)})`);
        chunk.code = `/*! pathsum (Apache-2.0). Contains ${names.join(", ")}. */\n${chunk.code}`;
        const rule = "-".repeat(80);
        const parts = sorted.map((one) => `${rule}\n${one.name} ${one.version} (${one.license})\n\n${one.text}\n`);
        this.emitFile({
          type: "asset",
          fileName: "THIRD-PARTY-NOTICES.txt",
          source: `The explorer's script, app.js, contains parts of these packages, under these licenses.\n\n${parts.join("\n")}`,
        });
      }
    },
  };
}

/** The line of a license that names the authors, without addresses: a report names no other host. */
function copyright(one: Package): string {
  const line = one.text.split("\n").find((each) => /^copyright/i.test(each.trim()));
  if (line === undefined) throw new Error(`the license of ${one.name} names no author`);
  return line.trim().replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/ *<[^>]*>/g, "");
}

/**
 * One script and one style sheet for page, report and notebook, with fixed names and the same bytes every time.
 * The script is a module that shows the page where there is a place for it, and exports anywidget's `render`.
 */
export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "external" } }), page(), notices()],
  build: {
    outDir: "../src/pathsum/explorer/bundle",
    emptyOutDir: false,
    target: "es2022",
    sourcemap: false,
    lib: { entry: "src/main.ts", formats: ["es"], fileName: () => "app.js", cssFileName: "app" },
    rollupOptions: { output: { codeSplitting: false, minify: true } },
  },
  define: process.env["VITEST"] ? {} : { "process.env.NODE_ENV": '"production"' },
  server: { proxy: { "/api": "http://127.0.0.1:8350" } },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
