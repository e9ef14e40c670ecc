import { readFileSync } from "node:fs";
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

/**
 * One script and one style sheet for page, report and notebook, with fixed names and the same bytes every time.
 * The script is a module that shows the page where there is a place for it, and exports anywidget's `render`.
 */
export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "external" } }), page()],
  build: {
    outDir: "../src/pathsum/bundle",
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
