// The same question as a curl command, as Python, and on the command line.

/** A text as one word of a shell. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** A text as Python writes it; JSON's escapes are Python's too. */
const literal = (value) => JSON.stringify(value);

/** curl, with the image as a file beside it. */
export function asCurl(body, file, { origin, secret }) {
  const { image, ...rest } = body;
  const lines = [
    `curl -s ${quoted(new URL("v1/compare", origin).href)}`,
    secret && `-H "Authorization: Bearer $TOKEN"`,
    `-F ${quoted(`image=@${file}`)}`,
    ...Object.entries(rest).map(([name, value]) => `--form-string ${quoted(`${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)}`),
  ];
  return lines.filter(Boolean).join(" \\\n  ");
}

/** The library itself, without the service: the answers have the same bits. */
export function asPython(body, file, labels) {
  const options = [];
  if (body.seed !== undefined) options.push(`seed=${body.seed}`);
  if (body.views !== undefined) options.push(`recipe=otpt.ViewRecipe(n_views=${body.views})`);
  if (body.reject) options.push(`reject="word-margin"`);
  const classes = [labels ? literal(labels) : `otpt.class_names(${literal(body.classes)})`];
  if (body.template) classes.push(`prompt=${literal(body.template)}`);
  const lines = [
    "import otpt",
    "",
    `clf = otpt.load(${[literal(body.model ?? "pocket"), ...options].join(", ")})`,
    `clf.set_classes(${classes.join(", ")})`,
    `answers = clf.compare(${literal(file)}, ${literal(body.methods)})`,
    "for name, answer in answers.items():",
    `    print(name, answer.label, f"{answer.confidence:.3f}")`,
  ];
  return lines.join("\n");
}

/** `otpt predict`. */
export function asCommand(body, file, labels) {
  const words = ["otpt predict", quoted(file), "--classes", ...(labels ?? []).map(quoted)];
  const options = [
    `--backbone ${quoted(body.model ?? "pocket")}`,
    `--methods ${body.methods.map(quoted).join(" ")}`,
    body.template && `--prompt ${quoted(body.template)}`,
    body.seed !== undefined && `--seed ${body.seed}`,
    body.views !== undefined && `--views ${body.views}`,
    body.reject && "--reject",
  ];
  return [words.join(" "), ...options.filter(Boolean)].join(" \\\n  ");
}
