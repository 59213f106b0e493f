// The dialog that asks for a job like another one.

import { address, ask, at, el, tell, trouble } from "./base.js";

let name = ""; // of the job that is cloned

/** A name that is probably free: that of the job, with a new ending. */
function suggestion() {
  const random = Math.random().toString(36).slice(2, 6).padEnd(4, "0");
  return `${name.replace(/-copy-[a-z0-9]{4}$/, "").slice(0, 53)}-copy-${random}`;
}

function secretField(secret) {
  const input = el("input", { type: "password", name: secret, autocomplete: "new-password" });
  return el("label", {}, `${secret} (not copied; left empty, the new job has none)`, input);
}

export function openClone(job, { hyperparameters, secrets, checkpoints }) {
  name = job;
  at("clone-name").value = suggestion();
  at("clone-settings").value = hyperparameters;
  at("clone-secrets").replaceChildren(...secrets.map(secretField));
  tell(at("clone-note"), checkpoints && `The new job goes on from the checkpoints at ${checkpoints}, which both jobs use.`);
  tell(at("clone-trouble"), "");
  at("clone").showModal();
  at("clone-name").select();
}

async function create(event) {
  event.preventDefault(); // the page sends it itself, with the header that the service asks for
  const secrets = Object.fromEntries([...at("clone-secrets").querySelectorAll("input")].map((one) => [one.name, one.value]));
  const wanted = { name: at("clone-name").value.trim(), hyperparameters: at("clone-settings").value, secrets };
  at("clone-create").disabled = true;
  try {
    const options = { method: "POST", headers: { "X-Syrtos": "page" }, body: JSON.stringify(wanted), alone: true };
    const created = await ask(`${address(name)}/clone`, options);
    at("clone").close();
    location.hash = `#/jobs/${created.name}`;
  } catch (error) {
    tell(at("clone-trouble"), trouble(error));
  } finally {
    at("clone-create").disabled = false;
  }
}

at("clone-form").addEventListener("submit", create);
at("clone-cancel").addEventListener("click", () => at("clone").close());
at("clone").addEventListener("close", () => at("clone-secrets").replaceChildren()); // no secret stays in the document
