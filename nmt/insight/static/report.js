"use strict";
// A button beside each command copies it; where the browser denies that, the command stays selected.

for (const command of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: "Copy", ariaLive: "polite" });
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected: copy it now";
    }
  });
  command.after(button);
}
