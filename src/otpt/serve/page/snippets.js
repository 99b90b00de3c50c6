// The same question as a curl command, as Python, and on the command line.

/** A text as one word of a shell. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** A text as Python writes it; JSON's escapes are Python's too. */
const literal = (value) => JSON.stringify(value);

/** curl, with the image as a file beside it. */
export function asCurl(body, file, { origin, secret }) {
  const lines = [
    `curl -s ${quoted(new URL("v1/compare/form", origin).href)}`,
    secret && `-H "Authorization: Bearer $TOKEN"`,
    `-F ${quoted(`image=@"${file.replaceAll(/["\\]/g, "\\$&")}"`)}`, // in quotes, as ; and , have a meaning
    ...Object.entries(body).map(([name, value]) => `--form-string ${quoted(`${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)}`),
  ];
  return lines.filter(Boolean).join(" \\\n  ");
}

/** The library itself, without the service: the answers have the same bits. */
export function asPython(body, file, labels) {
  const views = `n_views=${body.views}${body.classes ? ", augmix=listed.augmix is not False" : ""}`;
  const options = [literal(body.model), `seed=${body.seed}`, `views=otpt.ViewRecipe(${views})`];
  if (body.classes) options.push(`family=listed.family or "fine-grained"`);
  if (body.reject) options.push(`reject="word-margin"`);
  if (body.multi_label) options.push("multi_label=True");
  const classes = body.classes ? ["listed.names"] : [literal(labels)];
  if (body.prompt || body.classes) classes.push(body.prompt ? literal(body.prompt) : "listed.prompt");
  if (body.groups) classes.push(`groups=${literal(body.groups)}`);
  const shown = [
    body.calibration && "answer.set",
    body.reject && "answer.rejected",
    body.multi_label && `answer.labels_above(${body.threshold ?? 0.5})`,
    body.groups && `answer.back_off(${body.threshold ?? 0.5})`,
  ];
  const lines = [
    "import otpt",
    body.calibration && "from otpt.calibration import Calibrated, read_calibration",
    body.classes && "from otpt.data.classes import read_class_list",
    "",
    body.classes && `listed = read_class_list(${literal(`${body.classes}.txt`)})`,
    `clf = otpt.load(${options.join(", ")})`,
    `clf.set_classes(${classes.join(", ")})`,
    `methods = ${literal(body.methods)}`,
    body.calibration && `calibration = Calibrated(read_calibration(${literal(`${body.calibration}.json`)}), coverage=${body.coverage ?? "None"})`,
    body.calibration && "clf.use_calibrations([calibration], methods)",
    `for name, answer in clf.compare(${literal(file)}, methods).items():`,
    `    print(${["name", "answer.label", `f"{answer.confidence:.3f}"`, ...shown.filter(Boolean)].join(", ")})`,
  ];
  return lines.filter((line) => typeof line === "string").join("\n");
}

/** `otpt predict`. */
export function asCommand(body, file, labels) {
  const classes = body.classes ? [`@${body.classes}.txt`] : labels;
  const lines = [
    `otpt predict ${quoted(file)} --backbone ${quoted(body.model)}`,
    `--classes ${classes.map(quoted).join(" ")}`,
    `--methods ${body.methods.map(quoted).join(" ")}`,
    body.prompt && `--prompt ${quoted(body.prompt)}`,
    `--seed ${body.seed} --views ${body.views}`,
    body.reject && "--reject",
    body.multi_label && "--multi-label",
    body.calibration && `--calibration ${quoted(`${body.calibration}.json`)}`,
    body.coverage !== undefined && `--coverage ${body.coverage}`,
  ];
  return lines.filter(Boolean).join(" \\\n  ");
}
